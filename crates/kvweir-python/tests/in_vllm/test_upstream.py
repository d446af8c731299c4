"""vLLM's own tests of file tier, back-pressure and tiering manager, run against kvweir's classes.

The tests come from the source distribution of the installed version, are copied into a temporary folder at test time, and
see kvweir's classes under the names that they import (``upstream/substitute.py``). ``upstream.toml`` lists those that
cannot apply, with reasons.
"""

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from places import VLLM_ENV

HERE = Path(__file__).parent
FILES = ("test_backpressure.py", "test_fs_tier.py", "test_tiering_offloading.py")
VERSION = "0.33.0"


def listed(table: str = "does_not_apply") -> dict[str, str]:
    """Pattern -> reason."""
    with (HERE / "upstream.toml").open("rb") as f:
        return tomllib.load(f)[table]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Upstream's tests, copied."""
    vllm = pytest.importorskip("vllm")
    if vllm.__version__.partition("+")[0] != VERSION:
        pytest.skip(f"vLLM {vllm.__version__} is installed, the tests at hand are of {VERSION}")
    answer = subprocess.run([VLLM_ENV, "src"], capture_output=True, text=True)
    assert answer.returncode == 0, f"vLLM's sources did not come: {answer.stderr.strip()[-500:]}"
    source = Path(answer.stdout.strip()) / "tests" / "v1" / "kv_offload"
    root = tmp_path_factory.mktemp("upstream")
    folder = root / "tests" / "v1" / "kv_offload" / "tiering"
    folder.mkdir(parents=True)
    for d in (folder, *list(folder.parents)[:3]):
        (d / "__init__.py").touch()
    shutil.copy(source / "conftest.py", folder.parent)
    for name in FILES:
        shutil.copy(source / "tiering" / name, folder)
    return root


@pytest.fixture(scope="module", params=["unbounded", "bounded"])
def outcomes(request: pytest.FixtureRequest, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Test id -> outcome and text."""
    out = tmp_path_factory.mktemp("outcomes") / "outcomes.json"
    env = dict(os.environ, KVWEIR_UPSTREAM_OUT=str(out), HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR")
    path = [str(HERE / "upstream"), str(tree), os.environ.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    tests = ["tests"]
    if request.param == "bounded":
        env["KVWEIR_UPSTREAM_BOUND"] = "1GiB"
        tests = ["tests/v1/kv_offload/tiering/test_fs_tier.py"]  # the others make no difference
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "substitute", "--timeout=60", *tests]
    run = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=600)
    assert out.is_file(), run.stdout[-3000:] + run.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.mark.parametrize("file", FILES)
def test_upstreams_tests_pass_but_for_those_listed(file: str, outcomes: dict[str, list[str]]) -> None:
    of_file = {t: o for t, o in outcomes.items() if t.startswith(f"{file}::")}
    if not of_file and file != "test_fs_tier.py" and any(t.startswith("test_fs_tier.py") for t in outcomes):
        pytest.skip("bounded and unbounded differ in test_fs_tier.py only")
    assert of_file, f"no test of {file} ran"
    patterns = [p for p in listed() if p.startswith(f"{file}::")]
    failing, stale = [], []
    seen: Counter[str] = Counter()
    for test, (outcome, text) in of_file.items():
        if test in listed("depends_on_timing"):
            continue
        hit = [p for p in patterns if fnmatch.fnmatchcase(test, p)]
        seen.update(hit)
        if outcome == "failed" and not hit:
            failing.append(f"{test}\n{text}")
        elif outcome == "passed" and hit:
            stale.append(f"{test} passes, yet {hit[0]!r} lists it")
    stale += [f"{p!r} matches no test" for p in patterns if not seen[p]]
    counts = Counter(o for o, _ in of_file.values())
    print(f"{file}: {dict(counts)}, {sum(seen.values())} do not apply")
    assert not failing, "\n\n".join([f"{len(failing)} fail:", *failing])
    assert not stale, "\n".join(stale)


def test_every_reason_is_a_sentence() -> None:
    for pattern, reason in (listed() | listed("depends_on_timing")).items():
        assert pattern.split("::")[0] in FILES, pattern
        assert reason[0].isupper() and reason.endswith(".") and len(reason) > 20, reason
