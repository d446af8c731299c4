"""``KvweirManager``: the tiering manager that ``KvweirOffloadingSpec`` gives to vLLM's scheduler.

The calls of a step are native, inherited from ``kvweir._kvweir.Manager`` with no Python frame between. Here is what is
called once a step or less: events, metrics, the end, and the care for tiers that are written in Python.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kvweir._kvweir import Gate, Manager
from kvweir.vllm import compat
from kvweir.vllm.manager_metrics import Reporter
from kvweir.vllm.pressure import InflightBound, KvweirDetector, KvweirDropPolicy, KvweirThrottledDropPolicy
from kvweir.vllm.tier import KvweirTier

logger = logging.getLogger("vllm.kvweir")

# between two reports of the same failing round
_TELL_EVERY_S = 1.0
# how long shutdown waits for the polling thread, and for the lock where that does not end
_JOIN_S = 5.0


class _Parent:
    """What a tier sees of its manager in ``serve_external_requests``: all but itself."""

    def __init__(self, manager: "KvweirManager", place: int) -> None:
        self._manager = manager
        self._place = place

    def on_new_request(self, req_context: Any) -> Any:
        return self._manager.external_request(req_context, self._place)

    def lookup(self, key: Any, req_context: Any) -> Any:
        return self._manager.external_lookup(key, req_context)

    def create_store_job(self, keys: Collection[Any], req_context: Any) -> Any:
        job_id, keys, rows = self._manager.external_store_job(keys, req_context, self._place)
        return compat.job(job_id, keys, rows, False, req_context)

    def on_request_finished(self, req_context: Any) -> None:
        self._manager.on_request_finished(req_context)


if compat.ParentManager is not None:
    compat.ParentManager.register(_Parent)


class KvweirManager(Manager):
    """Orchestrates the primary tier in host memory and the secondary tiers below it.

    ``view``: the primary's rows. ``tiers``: made by vLLM's factory; those of kvweir are driven natively, others through
    an adapter that gives them the calls of vLLM's own manager. ``on_close`` lets go of the primary's memory.
    """

    def __new__(cls, view: memoryview, tiers: Sequence[Any] = (), **settings: Any) -> "KvweirManager":
        native = {k: v for k, v in settings.items() if k in _NATIVE}
        return super().__new__(
            cls, view, compat.words(), order=compat.ORDER, hears_flush=compat.HAS["reset_flushed"], **native
        )

    def __init__(self, view: memoryview, tiers: Sequence[Any] = (), **settings: Any) -> None:
        self.view = view
        self.secondary_tiers = list(tiers)
        self._info = dict(settings.get("info") or {})
        self._on_close = settings.get("on_close")
        self._home = os.getpid()
        self._closed = False
        self._told_at: dict[int, float] = {}
        self._events_on = bool(settings.get("events"))
        rows, row = view.shape or (0, 0)
        # by tier: whether its gate is the engine's own, which alone knows what it dropped
        self.gated_natively: list[bool] = []
        foreign = []
        for place, tier in enumerate(self.secondary_tiers):
            where = (getattr(tier, "medium", None), getattr(tier, "locality", None))
            source = getattr(tier, "cache_hit_source", None)
            gate = _gate(tier, rows * row)
            self.gated_natively.append(isinstance(gate, Gate))
            known = (tier.tier_type, gate, source, where, _is_remote(tier))
            if type(tier).submit_store is KvweirTier.submit_store and isinstance(tier, KvweirTier):
                self.add_native(tier._tier, *known)
            else:
                self.add_hosted(tier, *known, compat.job)
                foreign.append((place, tier))
        serving = [(p, t) for p, t in foreign if compat.serves(t)]
        ending = [t for _, t in foreign if compat.hears_ends(t)]
        polled = [(p, t) for p, t in foreign if getattr(t, "tolerates_off_thread_polling", False)]
        self._foreign = foreign
        self._parents = {place: _Parent(self, place) for place, _ in foreign}
        self._serving, self._ending, self._polled_tiers = serving, ending, polled
        self._reporter = Reporter(self, rows, row, [t.tier_type for t in self.secondary_tiers])
        if serving or ending:
            self.on_schedule_end = self._end_step  # type: ignore[method-assign]
        interval = settings.get("tier_poll_interval_s", 0.001)
        self._tier_poll_interval_s = interval
        self._tier_poll_stop = threading.Event()
        self._tier_poll_thread: threading.Thread | None = None
        # only a thread of our own makes a lock necessary
        needs_thread = bool(polled) and compat.HAS["manager_lock"] and interval > 0
        self._lock: Any = threading.Lock() if needs_thread else contextlib.nullcontext()
        if needs_thread:
            name = "kvweir-tier-poll"
            self._tier_poll_thread = threading.Thread(target=self._tier_poll_loop, name=name, daemon=True)
            self._tier_poll_thread.start()

    @property
    def lock(self) -> Any:
        """Held by whoever calls, for as long as answers are to stay true."""
        return self._lock

    # --- tiers written in Python --------------------------------------------------------------------------------

    def _end_step(self, context: Any) -> None:
        self.poll_step()
        self._serve()
        Manager.on_schedule_end(self, context)
        for tier in self._ending:
            self._call(tier, "on_schedule_end", context)

    def _serve(self, among: Collection[Any] | None = None) -> None:
        for place, tier in self._serving if among is None else among:
            self._call(tier, "serve_external_requests", self._parents[place])

    def _call(self, tier: Any, name: str, *arguments: Any) -> Any:
        """Calls a tier. What it raises is told, once a second at most, and goes no further."""
        try:
            answer = getattr(tier, name)(*arguments)
            # a generator raises while it is read
            return list(answer) if name == "take_events" else answer
        except Exception:
            now = time.monotonic()
            if now - self._told_at.get(id(tier), 0.0) >= _TELL_EVERY_S:
                self._told_at[id(tier)] = now
                logger.exception("tier %s raised in %s", tier.tier_type, name)
        return None

    def poll_tiers(self) -> None:
        """What the polling thread does, under the lock: jobs that ended, and requests of others."""
        before = self.set_polled(True)
        try:
            self.poll_some([place for place, _ in self._polled_tiers])
            self._serve([(p, t) for p, t in self._serving if (p, t) in self._polled_tiers])
        finally:
            self.set_polled(before)

    def _tier_poll_loop(self) -> None:
        while not self._tier_poll_stop.is_set():
            if not self._lock.acquire(timeout=1.0):
                continue
            try:
                self.poll_tiers()
            finally:
                self._lock.release()
            # locks are not fair: this pause is what lets the scheduler in
            self._tier_poll_stop.wait(self._tier_poll_interval_s)

    # --- once a step or less ------------------------------------------------------------------------------------

    def take_events(self) -> Iterable[Any]:
        """Residency changes of the primary and of all tiers, each oldest first."""
        if self._events_on:
            # taken at once, however much of it is read
            lost, told = self.take_lost(), self.take_primary_events()
            if lost and compat.HAS["metadata_events"]:
                yield compat.event(keys=lost, medium=compat.Medium.CPU, removed=True, metadata_only=True)
            for removed, keys in told:
                yield compat.event(keys=keys, medium=compat.Medium.CPU, removed=removed)
        for tier in self.secondary_tiers:
            yield from self._call(tier, "take_events") or ()

    def get_stats(self) -> Any:
        """What changed since the last call; none where nothing did."""
        if self._closed or os.getpid() != self._home:
            return None
        stats = self._reporter.report()
        for tier in self.secondary_tiers:
            of_tier = self._call(tier, "get_stats") if compat.HAS["stats"] else None
            if of_tier is None or of_tier.is_empty():
                continue
            if stats is None:
                stats = of_tier
            else:
                stats.aggregate(of_tier)
        return stats

    def config_info(self) -> Sequence[dict[str, Any]]:
        """The labels of the primary and of each tier, in order."""
        infos = [{**self._info, "tier": "0:primary"}]
        for place, tier in enumerate(self.secondary_tiers, 1):
            infos.append({**tier.config_info(), "tier": f"{place}:{tier.tier_type}"})
        return infos

    def shutdown(self) -> None:
        """Ends the tiers and lets go of the primary's memory. Called without the lock."""
        if self._closed or os.getpid() != self._home:
            return
        thread = self._tier_poll_thread
        self._tier_poll_stop.set()
        if thread is not None:
            thread.join(timeout=_JOIN_S)
            if thread.is_alive():
                # it may be in a tier: that is not ended under it
                if not self._lock.acquire(timeout=_JOIN_S):
                    text = "the polling thread does not end; shutdown() must be called without holding the lock"
                    raise RuntimeError(text)
                try:
                    return self._end()
                finally:
                    self._lock.release()
            self._tier_poll_thread = None
        self._end()

    def _end(self) -> None:
        self._closed = True
        failed: Exception | None = None
        for _, tier in self._foreign:
            try:
                tier.shutdown()
            except Exception as e:
                failed = e
                logger.exception("tier %s did not shut down", tier.tier_type)
        self.hosted_are_over()
        try:
            # what ours are still doing ends here
            self.close()
        except Exception as e:
            failed = e
        foreign = [t for _, t in self._foreign]
        for tier in self.secondary_tiers:
            if tier not in foreign:
                try:
                    tier.shutdown()
                except Exception as e:
                    failed = e
        if failed is not None:
            # somebody may still use the memory
            raise failed
        if self._on_close is not None:
            self._on_close()


_NATIVE = ("policy", "events", "windows", "promote_share", "promote_wait_s")
compat.OffloadingManager.register(KvweirManager)


def _is_remote(tier: Any) -> bool:
    return getattr(getattr(tier, "locality", None), "name", "LOCAL") == "REMOTE"


def _gate(tier: Any, primary_bytes: int) -> Any:
    """The gate before a tier's stores: ours with the settings of its detector, or around a detector of others."""
    detector = getattr(tier, "bp_detector", None) or getattr(tier, "_bp_detector", None)
    if detector is None or not isinstance(detector, KvweirDetector) or not isinstance(tier, KvweirTier):
        return detector
    most = detector.max_inflight_bytes or max(1, primary_bytes // 4)
    if isinstance(detector, InflightBound):
        return Gate(most)
    policy = detector.policy
    if type(policy) is KvweirDropPolicy:
        return Gate(most, detector.settings, throttled=False)
    if type(policy) is KvweirThrottledDropPolicy:
        return Gate(most, detector.settings, throttled=True, ramp_factor=policy.ramp_factor)
    return detector
