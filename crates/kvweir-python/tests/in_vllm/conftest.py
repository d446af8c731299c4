"""Tests inside vLLM: its real tiering manager under the driver of ``helpers/vllm_driver``."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vllm_driver import Driver

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("PYTHONHASHSEED", "0")


@pytest.fixture(autouse=True, scope="session")
def vllm_is_there() -> None:
    """Without vLLM nothing here can run."""
    vllm = pytest.importorskip("vllm", reason="vLLM is not installed")
    if not hasattr(vllm, "__version__"):
        pytest.skip("vLLM is not installed")


class Engine:
    """One lifetime of vLLM's manager over the primary and some secondary tiers."""

    def __init__(self, tiers: list[dict[str, Any]], **shape: Any) -> None:
        from vllm_driver import Driver

        self.inner: Driver = Driver(tiers, **shape)
        self.tier = self.inner.tiers[0]
        self.mgr = self.inner.manager

    def ask(self, keys: list[bytes]) -> int:
        """One request for ``keys`` to its end: how many were hits. Every loaded byte is checked."""
        return self.inner.ask(keys).hits or 0

    def forget(self) -> None:
        """Empties the primary."""
        self.inner.forget()

    def keys(self, n: int, salt: str = "p") -> list[bytes]:
        """The keys of a prompt of ``n`` chunks."""
        return self.inner.prompt(n, salt)

    def path(self, key: bytes) -> Path:
        """Where a block lies."""
        return Path(self.tier.file_mapper.get_file_name(key))


@pytest.fixture
def start() -> Iterator[Callable[..., Engine]]:
    """Starts engines and stops them."""
    running: list[Engine] = []

    def make(*tiers: dict[str, Any], **shape: Any) -> Engine:
        running.append(Engine(list(tiers), **shape))
        return running[-1]

    def stop(e: Engine) -> None:
        running.remove(e)
        e.inner.close()

    make.stop = stop  # type: ignore[attr-defined]
    yield make
    for e in running:
        e.inner.close()


@pytest.fixture
def ours(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A stanza of kvweir's tier."""

    def stanza(**more: Any) -> dict[str, Any]:
        base = {"type": "KvweirFsTier", "module_path": "kvweir.vllm", "root_dir": str(tmp_path / "kv"), "max_bytes": "1GiB"}
        return {k: v for k, v in (base | more).items() if v is not None}

    return stanza
