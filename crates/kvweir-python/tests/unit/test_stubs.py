"""The type stubs say what the native module is."""

import subprocess
import sys
from pathlib import Path

import pytest

import kvweir


def test_the_stubs_match_the_native_module(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    command = [sys.executable, "-m", "mypy.stubtest", "kvweir._kvweir", "--concise"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_package_type_checks_as_its_users_see_it(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "use.py").write_text(
        "import kvweir\n"
        "tier = kvweir.FsTier(bytearray(8), '/x', '{}', 0, (0, 1, 2), max_bytes=kvweir.parse_size('1GiB'))\n"
        "ended: list[tuple[int, bool, list[bool], int, int, float, float]] = tier.poll()\n"
        "mark: float = kvweir.Detector.defaults('fs')[0]\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "use.py", "--cache-dir", str(tmp_path / "cache")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_package_says_that_it_is_typed():
    assert (Path(kvweir.__file__).parent / "py.typed").is_file()
