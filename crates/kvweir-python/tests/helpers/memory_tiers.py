"""A tier of vLLM's interface in a dictionary, and tiers that do one thing wrong each: what a driver must tell apart.

Jobs end when they are polled, so that all is the same in every run. Blocks are kept by ``store``, a name: a later tier
of the same name has them, as after a restart.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager

from kvweir.vllm import compat

STORES: dict[str, dict[bytes, Any]] = defaultdict(dict)


class MemoryTier(SecondaryTierManager):
    """Right in everything."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        store: str,
        backpressure_detector: Any = None,
    ) -> None:
        compat.init_base(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.rows: Any = np.asarray(primary_kv_view)
        self.blocks = STORES[store]
        self.asked: list[tuple[str, bytes]] = []
        self.finished: Counter[str] = Counter()
        self.jobs: list[tuple[bool, Any]] = []

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        """Known at once."""
        self.asked.append((req_context.req_id, bytes(key)))
        return LookupResult.HIT if bytes(key) in self.blocks else LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        """Done when it is polled."""
        self.jobs.append((False, job_metadata))

    def submit_load(self, job_metadata: Any) -> None:
        """Done when it is polled."""
        self.jobs.append((True, job_metadata))

    def get_finished_jobs(self) -> Iterable[Any]:
        """All of them."""
        jobs, self.jobs = self.jobs, []
        return [self.done(load, job) for load, job in jobs]

    def done(self, load: bool, job: Any) -> Any:
        """Moves the bytes of one job."""
        for key, slot in zip(job.keys, job.chunk_ids, strict=True):
            if load:
                self.read(bytes(key), int(slot))
            else:
                self.write(bytes(key), int(slot))
        return compat.result(job_id=job.job_id, success=True)

    def read(self, key: bytes, slot: int) -> None:
        """A block into a slot."""
        self.rows[slot] = self.blocks[key]

    def write(self, key: bytes, slot: int) -> None:
        """A slot into a block."""
        self.blocks[key] = self.rows[slot].copy()

    def has_pending_work(self) -> bool:
        """Whether jobs wait to be polled."""
        return bool(self.jobs)

    def on_new_request(self, req_context: Any) -> Any:
        """The default."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Counted."""
        self.finished[req_context.req_id] += 1

    def drain_jobs(self) -> None:
        """They are reported by the next poll."""

    def shutdown(self) -> None:
        """Lets go of the primary."""
        self.rows = None


class FlippingTier(MemoryTier):
    """One bit of each block it loads is another."""

    def read(self, key: bytes, slot: int) -> None:
        """Wrong."""
        super().read(key, slot)
        self.rows[slot, 77] ^= 1


class DroppingTier(MemoryTier):
    """Says that it stored, and stores every other block only."""

    def write(self, key: bytes, slot: int) -> None:
        """Not always."""
        self.dropped = not getattr(self, "dropped", False)
        if not self.dropped:
            super().write(key, slot)


class HastyTier(MemoryTier):
    """Reports a load before it reads."""

    def done(self, load: bool, job: Any) -> Any:
        """Bytes come never."""
        return compat.result(job_id=job.job_id, success=True) if load else super().done(load, job)


class LateTier(MemoryTier):
    """Writes into slots some time after it reported them."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.later: list[int] = []

    def read(self, key: bytes, slot: int) -> None:
        """Right at first."""
        super().read(key, slot)
        self.later.append(slot)

    def on_schedule_end(self, context: Any) -> None:
        """The slots may be in use by now."""
        if not self.jobs:
            for slot in self.later:
                self.rows[slot] = 0
            self.later.clear()


class MuteTier(MemoryTier):
    """Never reports a load."""

    def get_finished_jobs(self) -> Iterable[Any]:
        """Stores only."""
        loads = [(load, job) for load, job in self.jobs if load]
        self.jobs = [(load, job) for load, job in self.jobs if not load]
        ended = list(super().get_finished_jobs())
        self.jobs = loads
        return ended


class EvasiveTier(MemoryTier):
    """Never says whether it has a block."""

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        """Ask again."""
        return LookupResult.RETRY


class RaisingTier(MemoryTier):
    """Raises into the engine."""

    def submit_load(self, job_metadata: Any) -> None:
        """Not at start, when it could."""
        raise RuntimeError("no disk today")
