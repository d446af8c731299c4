"""What the tests of the real engine share; see ``host.py``."""

import os
from pathlib import Path

import pytest

EXTENDED = os.environ.get("KVWEIR_EXTENDED") == "1"


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", "extended: long; runs with KVWEIR_EXTENDED=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what takes long, unless it is asked for."""
    for item in items:
        if "extended" in item.keywords and not EXTENDED:
            item.add_marker(pytest.mark.skip(reason="set KVWEIR_EXTENDED=1"))


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on a disk for the whole session."""
    return tmp_path_factory.mktemp("e2e")
