"""vLLM's own tests of managers and of the offloading connector, run against kvweir's manager and specification.

``upstream/substitute_manager.py`` puts them in place; ``upstream_manager.toml`` lists the tests that cannot apply, with
reasons.
"""

import json
from pathlib import Path

import pytest
from upstream_run import Outcomes, Table, copied, run

OFFLOAD, UNIT = "v1/kv_offload/", "v1/kv_connector/unit/"
# those of workers, and of what is mapped where, see no manager
FILES = {
    "tiering/test_tiering_offloading.py": OFFLOAD + "tiering/test_tiering_offloading.py",
    "tiering/test_tier_poll_thread.py": OFFLOAD + "tiering/test_tier_poll_thread.py",
    "tiering/test_backpressure.py": OFFLOAD + "tiering/test_backpressure.py",
    "cpu/test_manager.py": OFFLOAD + "cpu/test_manager.py",
    "connector/test_config.py": UNIT + "offloading_connector/test_config.py",
    "connector/test_events.py": UNIT + "offloading_connector/test_events.py",
    "connector/test_metrics.py": UNIT + "offloading_connector/test_metrics.py",
    "connector/test_scheduler.py": UNIT + "offloading_connector/test_scheduler.py",
}
BESIDE = (
    OFFLOAD + "conftest.py",
    UNIT + "conftest.py",
    UNIT + "utils.py",
    UNIT + "offloading_connector/conftest.py",
    UNIT + "offloading_connector/utils.py",
)
MODEL = "models--facebook--opt-125m"
TABLE = Table(Path(__file__).parent / "upstream_manager.toml")


def cached_model(home: Path) -> Path:
    """A cache of models in which upstream's tests find the configuration that they name; it has no weights."""
    model = home / "hub" / MODEL
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(snapshot.name)
    config = {"model_type": "opt", "architectures": ["OPTForCausalLM"], "torch_dtype": "float16"}
    (snapshot / "config.json").write_text(json.dumps(config))
    return home


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Test id -> outcome and text."""
    tree = copied(tmp_path_factory.mktemp("upstream"), [*FILES.values(), *BESIDE])
    home = cached_model(tmp_path_factory.mktemp("models"))
    return run(tree, tree / "outcomes.json", "substitute_manager", FILES, HF_HOME=str(home))


@pytest.mark.parametrize("file", FILES)
def test_upstreams_tests_pass_but_for_those_listed(file: str, outcomes: Outcomes) -> None:
    TABLE.check(file, outcomes)


def test_every_reason_is_a_sentence() -> None:
    TABLE.check_reasons(FILES)
