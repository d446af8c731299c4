"""Fixtures of all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_memory_left_behind() -> Iterator[None]:
    """Removes the shared regions that this run's engines left in /dev/shm; those of others stay."""
    shm = Path("/dev/shm")
    before = set(shm.glob("vllm_offload_*.mmap"))
    yield
    for region in set(shm.glob("vllm_offload_*.mmap")) - before:
        if not _mapped(region):
            region.unlink(missing_ok=True)


def _mapped(region: Path) -> bool:
    """Whether a live process other than this one maps ``region``."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if maps.parent.name == str(os.getpid()):
            continue
        try:
            if str(region) in maps.read_text():
                return True
        except OSError:
            continue
    return False
