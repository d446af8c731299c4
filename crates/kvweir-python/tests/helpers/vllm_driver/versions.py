"""What differs between vLLM 0.30, 0.31, 0.32 and 0.33 as seen from a scheduler. Found by looking, not by number."""

import contextlib
import dataclasses
import inspect
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

VERSION: str = vllm.__version__.partition("+")[0]
# 0.30 tells the order of a request's keys after it first asked for them: that costs a hit one more step
LATE_ORDER = 1 if VERSION.startswith("0.30.") else 0
# up to 0.30 the connector tells the manager each step which keys a request has
TOUCHES = hasattr(OffloadingConnectorScheduler, "_touch")


def made(cls: Any, **known: Any) -> Any:
    """A dataclass with those of the fields that this version has."""
    names = {f.name for f in dataclasses.fields(cls)}
    return cls(**{k: v for k, v in known.items() if k in names})


def exclusively(manager: Any) -> Any:
    """The manager's lock; a scheduler holds it for the whole of a step (0.33). None before."""
    return getattr(manager, "lock", None) or contextlib.nullcontext()


def tell_position(context: Any, key: bytes, end_token: int) -> None:
    """Where in its request a key ends (0.31)."""
    if hasattr(context, "set_offload_key_position"):
        context.set_offload_key_position(key, end_token)


def reset(manager: Any) -> None:
    """Empties the primary, with every worker having reported (0.33 wants to be told)."""
    manager.reset_cache()
    if hasattr(manager, "on_reset_flushed"):
        manager.on_reset_flushed()


def worker_region(spec: Any) -> SharedOffloadRegion:
    """The shared region as the first worker opens it."""
    known = {
        "engine_id": spec.config.engine_id,
        "num_chunks": spec.num_chunks,
        "rank": 0,
        "kv_bytes_per_chunk": spec.kv_bytes_per_chunk,
        "cpu_page_size": spec.cpu_page_size_per_worker,
    }
    takes = inspect.signature(SharedOffloadRegion.__init__).parameters
    return SharedOffloadRegion(**{k: v for k, v in known.items() if k in takes})
