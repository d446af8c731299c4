"""The type stubs say what the native module has."""

import subprocess
import sys

import pytest


def test_the_stubs_agree_with_the_module() -> None:
    pytest.importorskip("mypy")
    run = [sys.executable, "-m", "mypy.stubtest", "kvweir._kvweir"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

