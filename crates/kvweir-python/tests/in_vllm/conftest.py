"""Tests inside vLLM: its real tiering manager, driven by the rig's simulated engine."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from places import RIG, rig_missing

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("PYTHONHASHSEED", "0")


@pytest.fixture(autouse=True, scope="session")
def vllm_is_there() -> None:
    """Without vLLM nothing here can run."""
    vllm = pytest.importorskip("vllm", reason="vLLM is not installed")
    if not hasattr(vllm, "__version__"):
        pytest.skip("vLLM is not installed")


@pytest.fixture(scope="session")
def sim() -> Any:
    """The rig's simulated engine."""
    if missing := rig_missing():
        pytest.skip(missing)
    sys.path[:0] = [str(RIG), str(RIG / "tiers")]
    sys.dont_write_bytecode = True
    import vllm_sim

    return vllm_sim


class Engine:
    """One lifetime of vLLM's manager over the primary and some secondary tiers."""

    def __init__(self, sim: Any, tiers: list[dict[str, Any]], **config: Any) -> None:
        config.setdefault("probe", False)
        config.setdefault("num_chunks", 64)
        self.inner = sim.Engine(tiers, **config)
        self.sim = sim
        self.tier = self.inner.tiers[0]
        self.mgr = self.inner.mgr
        self.served = 0

    def ask(self, keys: list[bytes], timeout: float = 60.0) -> int:
        """One request for ``keys`` to its end: how many were hits. Every loaded byte is checked."""
        self.served += 1
        r = self.inner.add_request(f"request-{self.served}", keys)
        self.inner.run_until_done(timeout=timeout)
        return r.hits

    def forget(self) -> None:
        """Empties the primary."""
        self.inner.drop_primary()

    def keys(self, n: int, salt: str = "p") -> list[bytes]:
        """The keys of a prompt of ``n`` chunks."""
        return self.sim.prompt_keys(n, salt=salt)

    def path(self, key: bytes) -> Path:
        """Where a block lies."""
        return Path(self.tier.file_mapper.get_file_name(key))


@pytest.fixture
def start(sim: Any) -> Iterator[Callable[..., Engine]]:
    """Starts engines and stops them."""
    running: list[Engine] = []

    def make(*tiers: dict[str, Any], **config: Any) -> Engine:
        e = Engine(sim, list(tiers), **config)
        running.append(e)
        return e

    def stop(e: Engine) -> None:
        running.remove(e)
        e.inner.shutdown()

    make.stop = stop  # type: ignore[attr-defined]
    yield make
    for e in running:
        e.inner.shutdown()


@pytest.fixture
def ours(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A stanza of kvweir's tier."""

    def stanza(**more: Any) -> dict[str, Any]:
        base = {"type": "KvweirFsTier", "module_path": "kvweir.vllm", "root_dir": str(tmp_path / "kv"), "max_bytes": "1GiB"}
        return {k: v for k, v in (base | more).items() if v is not None}

    return stanza
