"""Tiers of vLLM's interface whose every answer follows from what they were asked: two managers that ask the same are
answered the same. All that is asked of them is in ``log``.

Time is counted in steps of the scheduler. What a request could not load is gone for it: vLLM's manager asks for such a
block again and again, kvweir's does not.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, ClassVar

from memory_tiers import MemoryTier
from vllm.v1.kv_offload.base import LookupResult, Medium, OffloadPolicy, RequestOffloadingContext

from kvweir.vllm import compat


def chance(*of: object) -> float:
    """Between 0 and 1, the same in every run."""
    return int.from_bytes(hashlib.blake2b(repr(of).encode(), digest_size=4).digest()) / 2**32


class ScriptedTier(MemoryTier):
    """``lag``: steps that a job takes. ``doubts``: the share of blocks of which it finds out for a step. ``fails``: the
    share of loaded blocks that do not come; ``loses``: of store jobs that fail. ``every_block``: the share of requests
    of which it wants all.
    """

    def __init__(
        self,
        *args: Any,
        lag: int = 0,
        doubts: float = 0.0,
        fails: float = 0.0,
        loses: float = 0.0,
        every_block: float = 0.0,
        locality: str | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self.lag, self.doubts, self.every_block = lag, doubts, every_block
        self.fails, self.loses = fails, loses
        if locality is not None:
            self.locality = compat.locality(locality)
        self.now = 0
        self.log: list[tuple[Any, ...]] = []
        self._due: list[tuple[int, bool, Any]] = []
        self._doubted: dict[bytes, int] = {}
        self._gone: set[tuple[str, bytes]] = set()

    def _note(self, *what: Any) -> None:
        # a block may be asked for twice in a row, and a tier drained
        if what[0] not in ("lookup", "drain") or not self.log or self.log[-1] != what:
            self.log.append(what)

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        """At once, or a step later."""
        key = bytes(key)
        if (req_context.req_id, key) in self._gone:
            return LookupResult.MISS
        self._note("lookup", req_context.req_id, key)
        if chance("doubt", key) < self.doubts and self._doubted.setdefault(key, self.now) == self.now:
            return LookupResult.RETRY
        return LookupResult.HIT if key in self.blocks else LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        """It ends ``lag`` steps from now."""
        self._note("store", job_metadata.req_context.req_id, tuple(sorted(bytes(k) for k in job_metadata.keys)))
        self._due.append((self.now + self.lag, False, job_metadata))

    def submit_load(self, job_metadata: Any) -> None:
        """It ends ``lag`` steps from now."""
        self._note("load", job_metadata.req_context.req_id, tuple(bytes(k) for k in job_metadata.keys))
        self._due.append((self.now + self.lag, True, job_metadata))

    def get_finished_jobs(self) -> Iterable[Any]:
        """Those that are due."""
        due = [d for d in self._due if d[0] <= self.now]
        self._due = [d for d in self._due if d[0] > self.now]
        return [self.done(load, job) for _, load, job in due]

    def done(self, load: bool, job: Any) -> Any:
        """Moves the bytes of one job, or of a part of it."""
        name, keys = job.req_context.req_id, [bytes(k) for k in job.keys]
        if not load and chance("store", sorted(keys)) < self.loses:
            return compat.result(job_id=job.job_id, success=False)
        good = keys if not load else [k for k in keys if k in self.blocks and chance("load", name, k) >= self.fails]
        for key, slot in zip(keys, job.chunk_ids, strict=True):
            if not load:
                self.write(key, int(slot))
            elif key in good:
                self.read(key, int(slot))
            else:
                self._gone.add((name, key))
        whole = len(good) == len(keys)
        some = good if load else None
        return compat.result(job_id=job.job_id, success=whole, successful_keys=some, transfer_time=0.25)

    def has_pending_work(self) -> bool:
        """Whether jobs are under way."""
        return bool(self._due)

    def on_new_request(self, req_context: Any) -> Any:
        """Some want every block of it stored."""
        self._note("new", req_context.req_id)
        if chance("policy", req_context.req_id) < self.every_block:
            return RequestOffloadingContext(policy=OffloadPolicy.REQUEST_LEVEL)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Noted."""
        self._note("finished", req_context.req_id)

    def touch(self, keys: Any, req_context: Any) -> None:
        """Noted."""
        self._note("touch", req_context.req_id, tuple(bytes(k) for k in keys))

    def on_schedule_end(self, context: Any) -> None:
        """A step is over."""
        self._note("end", tuple(context.new_req_ids))
        self.now += 1

    def drain_jobs(self) -> None:
        """All are due; what could not be loaded may be asked for again."""
        self._note("drain")
        self._due = [(self.now, load, job) for _, load, job in self._due]
        self._gone.clear()


class ScriptedMemoryTier(ScriptedTier):
    """The same in host memory."""

    medium: ClassVar[Medium] = Medium.CPU
