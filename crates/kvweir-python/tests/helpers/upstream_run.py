"""Runs vLLM's own tests with kvweir's classes in the place of vLLM's, and compares what failed with a list.

The tests come from the source distribution of the installed version and are copied into a temporary folder. A plugin
puts kvweir's classes in place; a table says which tests cannot apply, and why.
"""

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from places import TESTS, VLLM_ENV

FOLDER = TESTS / "in_vllm" / "upstream"
VERSION = "0.33.0"

Outcomes = dict[str, list[str]]


class Table:
    """Which tests are expected to fail: pattern of test ids -> reason. ``known_faults`` are to be mended."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as f:
            told = tomllib.load(f)
        self.does_not_apply: dict[str, str] = told["does_not_apply"] | told.get("known_faults", {})
        self.depends_on_timing: dict[str, str] = told.get("depends_on_timing", {})

    def check(self, file: str, outcomes: Outcomes) -> None:
        """Every test of ``file`` passes or is listed, and nothing is listed in vain."""
        of_file = {t: o for t, o in outcomes.items() if t.startswith(f"{file}::")}
        assert of_file, f"no test of {file} ran"
        patterns = [p for p in self.does_not_apply if p.startswith(f"{file}::")]
        failing, stale = [], []
        seen: Counter[str] = Counter()
        for test, (outcome, text) in of_file.items():
            if any(fnmatch.fnmatchcase(test, p) for p in self.depends_on_timing):
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

    def check_reasons(self, files: Iterable[str]) -> None:
        """Every pattern is of one of ``files``, every reason a sentence."""
        known = set(files)
        for pattern, reason in (self.does_not_apply | self.depends_on_timing).items():
            assert pattern.split("::")[0] in known, pattern
            assert reason[0].isupper() and reason.endswith(".") and len(reason) > 20, reason


def sources() -> Path:
    """The folder of upstream's tests of the installed version; skips where another version is installed."""
    vllm = pytest.importorskip("vllm")
    if vllm.__version__.partition("+")[0] != VERSION:
        pytest.skip(f"vLLM {vllm.__version__} is installed, the tests at hand are of {VERSION}")
    answer = subprocess.run([VLLM_ENV, "src"], capture_output=True, text=True)
    assert answer.returncode == 0, f"vLLM's sources did not come: {answer.stderr.strip()[-500:]}"
    return Path(answer.stdout.strip()) / "tests"


def copied(root: Path, files: Iterable[str]) -> Path:
    """``root`` with ``files`` of upstream's tests in it, in packages as there."""
    source = sources()
    for name in files:
        target = root / "tests" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, target)
    for folder in [root / "tests", *(d for d in (root / "tests").rglob("*") if d.is_dir())]:
        (folder / "__init__.py").touch()
    return root


def run(tree: Path, out: Path, plugin: str, files: Mapping[str, str], **env: str) -> Outcomes:
    """Runs ``files`` (name in the table -> path below ``tests``): test id -> outcome and text."""
    path = [str(FOLDER), str(tree), os.environ.get("PYTHONPATH", "")]
    more = {
        "KVWEIR_UPSTREAM_OUT": str(out),
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }
    plugins = [word for p in ("outcomes", plugin) for word in ("-p", p)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins]
    # a signal does not end a native call that waits
    command += ["--timeout=60", "--timeout-method=thread"]
    command += [f"tests/{f}" for f in files.values()]
    done = subprocess.run(
        command, cwd=tree, env=os.environ | more | env, capture_output=True, text=True, timeout=300
    )
    assert out.is_file(), done.stdout[-3000:] + done.stderr[-3000:]
    ended = json.loads(out.read_text())
    names = {f"tests/{path}": name for name, path in files.items()}
    by_name = {}
    for test, outcome in ended.items():
        path, _, rest = test.partition("::")
        by_name[f"{names[path]}::{rest}"] = outcome
    return by_name
