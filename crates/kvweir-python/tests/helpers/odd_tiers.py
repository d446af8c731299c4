"""Tiers that a manager must outlive: each raises, lies, or asks the manager for something."""

import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, ClassVar

from memory_tiers import MemoryTier
from vllm.v1.kv_offload.base import LookupResult, ReqContext

from kvweir.vllm import compat


class RaisingTier(MemoryTier):
    """Raises in the calls named, comma by comma."""

    def __init__(self, *args: Any, calls: str, **named: Any) -> None:
        super().__init__(*args, **named)
        self.raised = 0
        for name in calls.split(","):
            setattr(self, name, self._raise)

    def _raise(self, *_: Any, **__: Any) -> Any:
        self.raised += 1
        raise RuntimeError("no disk today")

    # that a manager sees that it has them
    def serve_external_requests(self, parent: Any) -> None:
        """Nobody asks."""

    def on_schedule_end(self, context: Any) -> None:
        """Nothing to do."""


class RaisingOffThreadTier(RaisingTier):
    """The same, polled between steps."""

    tolerates_off_thread_polling: ClassVar[bool] = True


class LyingTier(MemoryTier):
    """Tells the end of jobs that are none, of some twice, and of some so that nobody can read it."""

    def __init__(self, *args: Any, lies: str, **named: Any) -> None:
        super().__init__(*args, **named)
        self._lies = lies
        self.told = 0

    def get_finished_jobs(self) -> Iterable[Any]:
        """Mixed with the truth."""
        out = []
        for result in super().get_finished_jobs():
            self.told += 1
            match self._lies:
                case "unknown":
                    out += [compat.result(job_id=10**6 + self.told, success=True), result]
                case "no number":
                    out += [compat.result(job_id="x", success=True), compat.result(job_id=-1, success=True), result]
                case "twice":
                    out += [result, result]
                case "unreadable":
                    out.append(SimpleNamespace(job_id=result.job_id))
                case "keys of others":
                    out.append(compat.result(job_id=result.job_id, success=False, successful_keys=[b"x", 7, None]))
                case "keys that are none":
                    out.append(compat.result(job_id=result.job_id, success=False, successful_keys=3))
        return out


class EndedTier(MemoryTier):
    """Notes what is asked of it after its end."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.after: list[str] = []
        self.over = False

    def __getattribute__(self, name: str) -> Any:
        get = super().__getattribute__
        if name in ("lookup", "submit_store", "submit_load", "get_finished_jobs", "has_pending_work", "drain_jobs"):
            if get("over"):
                get("after").append(name)
        return get(name)

    def shutdown(self) -> None:
        """No more calls."""
        super().shutdown()
        self.over = True


class ServingTier(MemoryTier):
    """Serves what others want of this engine: what ``wanted`` names, read from the primary."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.wanted: list[tuple[str, list[Any]]] = []
        self.answers: dict[str, list[Any]] = {}
        self.served: dict[bytes, Any] = {}
        self.errors: list[BaseException] = []
        self.threads: set[str] = set()
        self.asks = 0

    def serve_external_requests(self, parent: Any) -> None:
        """One of them a call."""
        self.asks += 1
        if not self.wanted:
            return
        self.threads.add(threading.current_thread().name)
        name, keys = self.wanted[0]
        if self.asks % 3 == 0:
            return
        context = ReqContext(req_id=name)
        try:
            if name not in self.answers:
                parent.on_new_request(context)
            found = [parent.lookup(key, context) for key in keys]
            self.answers.setdefault(name, []).append([f.name for f in found])
            if LookupResult.HIT_PENDING in found or LookupResult.RETRY in found:
                return
            have = [k for k, f in zip(keys, found, strict=True) if f is LookupResult.HIT]
            if have:
                job = parent.create_store_job(have, context)
                for key, slot in zip(job.keys, job.chunk_ids, strict=True):
                    self.served[bytes(key)] = self.rows[int(slot)].copy()
                self.jobs.append(("served", job))
            parent.on_request_finished(context)
        except BaseException as e:
            self.errors.append(e)
        self.wanted.pop(0)

    def done(self, load: Any, job: Any) -> Any:
        """What was served is over."""
        if load == "served":
            return compat.result(job_id=job.job_id, success=True)
        return super().done(load, job)

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        """Never of its own requests."""
        if req_context.req_id.startswith("peer"):
            self.errors.append(AssertionError("asked for what it wants itself"))
        return super().lookup(key, req_context)


class ServingOffThreadTier(ServingTier):
    """The same, between steps."""

    tolerates_off_thread_polling: ClassVar[bool] = True
