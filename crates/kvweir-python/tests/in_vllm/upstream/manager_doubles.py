"""kvweir's manager in the clothes of vLLM's, for upstream's tests of managers.

They translate how a manager is made, and show what upstream's tests look at from outside: who is known, which jobs run,
whether the step has polled. They decide nothing.
"""

import time
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, ReqContext
from vllm.v1.kv_offload.cpu.policies.arc import ARCCachePolicy
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy
from vllm.v1.kv_offload.tiering import manager as stock
from vllm.v1.kv_offload.tiering.base import TransferJob

from kvweir.vllm import compat
from kvweir.vllm import manager as ours

# a context of nobody, to look through
_ONLOOKER = ReqContext(req_id="onlooker")
STOCK_THREAD = "vllm_offload_tier_poll"
StockJob = stock.JobMetadata


def rows(count: int, length: int = 4096) -> memoryview:
    """Memory of a primary."""
    return memoryview(np.zeros((count, length), dtype=np.int8))


class PrimaryDouble:
    """The primary that a test makes before its manager; afterwards a window on that of the manager."""

    def __init__(
        self,
        num_chunks: int,
        mmap_region: Any,
        cache_policy: str = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        info: Any = None,
    ) -> None:
        assert cache_policy_module_path is None, "kvweir has no policies written in Python"
        self.settings = {"policy": cache_policy, "events": enable_events}
        self.info = {} if info is None else dict(info.as_config_info())
        self._num_chunks = num_chunks
        self._view = mmap_region.create_kv_memoryview()
        self.manager: Any = None

    def get_kv_memoryview(self) -> memoryview:
        """The memory."""
        return self._view

    def on_request_finished(self, req_context: ReqContext) -> None:
        """For a test to see that the request's end came."""

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        """What the primary alone says: no tier is asked, and the step's polling stays as it is."""
        m = self.manager
        polled = m.set_polled(True)
        try:
            with _tiers_silent(m.secondary_tiers):
                return m.lookup(key, _ONLOOKER)
        finally:
            m.set_polled(polled)


def _tiers_silent(tiers: list[Any]) -> ExitStack:
    stack = ExitStack()
    for tier in tiers:
        stack.enter_context(patch.object(tier, "lookup", lambda key, context: LookupResult.MISS))
    return stack


class Requests(MutableMapping[str, Any]):
    """Names of requests that have begun and whose end not all tiers were told."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def begin(self, name: str, tiers: int) -> None:
        self._known[name] = tiers

    def told(self, name: str) -> None:
        if name in self._known:
            self._known[name] -= 1
            if self._known[name] <= 0:
                del self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __getitem__(self, name: str) -> Any:
        raise AttributeError("what is kept of a request is private")

    def __setitem__(self, name: str, _: Any) -> None:
        raise AttributeError("what is kept of a request is private")

    def __delitem__(self, name: str) -> None:
        raise AttributeError("what is kept of a request is private")

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class _SourceOf:
    """Stands for the source of a tier, which a test may change after the manager was made."""

    def __init__(self, tier: Any) -> None:
        self.tier = tier


class TieringDouble(ours.KvweirManager):
    """``TieringOffloadingManager``."""

    def __new__(cls, primary_tier: PrimaryDouble, secondary_tiers: Any = None, **more: Any) -> "TieringDouble":
        return super().__new__(cls, primary_tier.get_kv_memoryview(), (), **primary_tier.settings)

    def __init__(self, primary_tier: PrimaryDouble, secondary_tiers: Any = None, **more: Any) -> None:
        tiers = list(secondary_tiers or ())
        self.primary_tier = primary_tier
        primary_tier.manager = self
        self._req_state = Requests()
        self._made: dict[int, Any] = {}
        self._announced: set[str] = set()
        for place, tier in enumerate(tiers):
            self._watch(place, tier)
        with patch.object(compat, "job", self._make_job), ExitStack() as stack:
            for tier in tiers:
                stack.enter_context(patch.object(tier, "cache_hit_source", _SourceOf(tier)))
            known = {"info": primary_tier.info, **primary_tier.settings, **more}
            super().__init__(primary_tier.get_kv_memoryview(), tiers, **known)
        if self._tier_poll_thread is not None:
            self._tier_poll_thread.name = STOCK_THREAD

    def on_new_request(self, req_context: ReqContext) -> Any:
        self._req_state.begin(req_context.req_id, len(self.secondary_tiers))
        self._announced.add(req_context.req_id)
        return super().on_new_request(req_context)

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        """As ever; the connector announces requests before it asks for them, upstream's tests may not."""
        if req_context is not _ONLOOKER and req_context.req_id not in self._announced:
            self._announced.add(req_context.req_id)
            super().on_new_request(req_context)
        return super().lookup(key, req_context)

    def get_load_source(self, key: bytes, req_context: ReqContext) -> Any:
        source = super().get_load_source(key, req_context)
        return source.tier.cache_hit_source if isinstance(source, _SourceOf) else source

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.primary_tier.on_request_finished(req_context)
        super().on_request_finished(req_context)

    def create_store_job(self, keys: Any, req_context: ReqContext, tier_idx: int = 0) -> TransferJob:
        """What a tier asks of its parent."""
        return self._parents[tier_idx].create_store_job(keys, req_context)

    def shutdown(self) -> None:
        with patch.object(ours, "_JOIN_S", stock._TIER_POLL_JOIN_TIMEOUT_S):
            super().shutdown()

    def _make_job(self, job_id: int, keys: Any, chunk_ids: Any, is_promotion: bool, context: Any) -> TransferJob:
        job = TransferJob(
            job_id=job_id, keys=keys, chunk_ids=chunk_ids, is_promotion=is_promotion, req_context=context
        )
        self._made[job_id] = job
        return job

    def _watch(self, place: int, tier: Any) -> None:
        """Notes what the tier is told and tells; a job is as old as the test makes it."""
        finished, ended = tier.on_request_finished, tier.get_finished_jobs

        def on_request_finished(req_context: Any) -> Any:
            self._req_state.told(req_context.req_id)
            return finished(req_context)

        def get_finished_jobs() -> Any:
            for result in ended():
                job = self._made.pop(result.job_id, None)
                if job is not None and result.transfer_time is None:
                    result.transfer_time = time.monotonic() - job.submit_time
                yield result

        tier.on_request_finished = on_request_finished
        tier.get_finished_jobs = get_finished_jobs

    @property
    def _jobs(self) -> dict[int, Any]:
        return {i: StockJob(job, 0) for i, job in self._made.items()}

    @property
    def _processed_jobs_this_step(self) -> bool:
        return _look(self)

    @_processed_jobs_this_step.setter
    def _processed_jobs_this_step(self, polled: bool) -> None:
        self.set_polled(polled)

    def _stop_tier_poll_thread(self) -> None:
        self._tier_poll_stop.set()
        self._tier_poll_thread.join()


def _look(manager: Any) -> bool:
    polled = manager.set_polled(False)
    manager.set_polled(polled)
    return polled


def _closed(policy: type) -> type:
    """A policy of which only the type can be seen: the real one is native."""

    def refuse(self: Any, name: str) -> Any:
        if name == "__class__":
            return policy
        raise AttributeError(f"{name} of vLLM's policy is private")

    return type("Closed", (policy,), {"__init__": lambda self: None, "__getattribute__": refuse})


_POLICIES = {"lru": _closed(LRUCachePolicy), "arc": _closed(ARCCachePolicy)}


class CpuDouble(ours.KvweirManager):
    """``CPUOffloadingManager``: no tiers, memory of its own."""

    medium = compat.Medium.CPU

    @property
    def _policy(self) -> Any:
        return _POLICIES[self._policy_name]()

    def __new__(cls, num_chunks: int, cache_policy: str = "lru", **more: Any) -> "CpuDouble":
        return super().__new__(cls, rows(num_chunks), (), policy=cache_policy, events=more.get("enable_events", False))

    def __init__(
        self,
        num_chunks: int,
        cache_policy: str = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
        info: Any = None,
    ) -> None:
        assert cache_policy_module_path is None, "kvweir has no policies written in Python"
        assert store_threshold < 2, "kvweir refuses store_threshold"
        labels = {} if info is None else dict(info.as_config_info())
        self._policy_name = cache_policy
        super().__init__(rows(num_chunks), (), policy=cache_policy, events=enable_events, info=labels)
