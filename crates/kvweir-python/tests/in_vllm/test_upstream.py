"""vLLM's own tests of file tier, back-pressure and tiering manager, run against kvweir's tier.

``upstream/substitute.py`` puts it in place; ``upstream.toml`` lists those that cannot apply, with reasons.
"""

from pathlib import Path

import pytest
from upstream_run import Outcomes, Table, copied, run

TIERING = "v1/kv_offload/tiering/"
FILES = {name: TIERING + name for name in ("test_backpressure.py", "test_fs_tier.py", "test_tiering_offloading.py")}
TABLE = Table(Path(__file__).parent / "upstream.toml")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Upstream's tests, copied."""
    return copied(tmp_path_factory.mktemp("upstream"), ["v1/kv_offload/conftest.py", *FILES.values()])


@pytest.fixture(scope="module", params=["unbounded", "bounded"])
def outcomes(request: pytest.FixtureRequest, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Test id -> outcome and text."""
    out = tmp_path_factory.mktemp("outcomes") / "outcomes.json"
    if request.param == "bounded":
        # the others make no difference
        files = {"test_fs_tier.py": FILES["test_fs_tier.py"]}
        return run(tree, out, "substitute", files, KVWEIR_UPSTREAM_BOUND="1GiB")
    return run(tree, out, "substitute", FILES)


@pytest.mark.parametrize("file", FILES)
def test_upstreams_tests_pass_but_for_those_listed(file: str, outcomes: Outcomes) -> None:
    if file != "test_fs_tier.py" and not any(t.startswith(f"{file}::") for t in outcomes):
        pytest.skip("bounded and unbounded differ in test_fs_tier.py only")
    TABLE.check(file, outcomes)


def test_every_reason_is_a_sentence() -> None:
    TABLE.check_reasons(FILES)
