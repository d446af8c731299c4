"""``KvweirTier``: the bounded tier on a local disk or mount as a secondary tier of vLLM's tiering manager.

Every call comes under the manager's lock and returns at once; nothing raises into the engine after start-up.
"""

import json
import logging
import os
import time
from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from kvweir import FsTier, KvweirError, take_logs
from kvweir.stanza import check_one, place_mistake, refuse
from kvweir.vllm import compat, labels, metrics
from kvweir.vllm.compat import LookupResult, Medium, RequestOffloadingContext, SecondaryTierManager
from kvweir.vllm.pressure import InflightBound, KvweirDetector
from kvweir.vllm.settings import FsSettings

logger = logging.getLogger("vllm.kvweir")

# between two snapshots for metrics and two looks at the log queue
STATS_EVERY_S = 0.5
MIB = 1 << 20


def default_max_inflight(primary_bytes: int) -> int:
    """A quarter of the primary, between 64 MiB and 2 GiB."""
    return max(64 * MIB, min(2048 * MIB, primary_bytes // 4))


class KvweirTier(SecondaryTierManager):
    """Blocks packed into large files, or a file each, below a hard limit, checked on every load."""

    LAYOUT: ClassVar[str | None] = None
    medium: ClassVar[Medium] = Medium.STORAGE
    tolerates_off_thread_polling: ClassVar[bool] = True

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **stanza: Any,
    ) -> None:
        rows_of_bytes = _rows_of_bytes(primary_kv_view)
        rows, row = rows_of_bytes.shape or (0, 0)
        settings, mistakes = FsSettings.look(stanza, self.LAYOUT, row or None)
        if place := place_mistake(settings.root_dir or ""):
            mistakes.append(place)
        refuse(mistakes, f"the stanza of tier {tier_type!r}")
        inflight = settings.max_inflight_bytes or default_max_inflight(rows * row)
        if backpressure_detector is None and compat.HAS["detector"]:
            backpressure_detector = InflightBound()
        compat.init_base(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = compat.locality(settings.locality)
        self._device_fed = None
        if isinstance(backpressure_detector, KvweirDetector):
            backpressure_detector.attach(row, inflight)
            self._device_fed = backpressure_detector
        self._row = row
        self._events_on = settings.enable_kv_events and compat.events_enabled(offloading_spec)
        if settings.enable_kv_events and not self._events_on:
            logger.warning("enable_kv_events is set on tier %s, but vLLM publishes no KV events", tier_type)
        # vLLM's own, as on its file tier: where a block lies, unless namespace_extra or a layout sets it apart
        self.file_mapper = compat.file_mapper(settings.root_dir, offloading_spec)
        try:
            self._tier = self._open(rows_of_bytes, settings, offloading_spec)
        except KvweirError as e:
            logger.error("kvweir: tier %r cannot open: %s", tier_type, e)
            raise
        # vLLM calls these thousands of times per step: no Python frame in between
        self.lookup = self._tier.lookup  # type: ignore[method-assign]
        self.has_pending_work = self._tier.has_pending_work  # type: ignore[method-assign]
        # jobs under way: how many blocks, and the keys of a load in its order
        self._jobs: dict[int, tuple[int, Collection[bytes]]] = {}
        self._failed_at_once: list[Any] = []
        self._reporter = metrics.Reporter(labels.label(offloading_spec, self, tier_type, stanza))
        self._next_stats = 0.0
        self._home = os.getpid()
        self._forward_logs()

    def _open(self, rows_of_bytes: memoryview, settings: FsSettings, offloading_spec: Any) -> FsTier:
        return FsTier(
            rows_of_bytes,
            settings.root_dir,
            json.dumps(compat.identity(self.file_mapper, offloading_spec)),
            self.file_mapper.rank,
            (LookupResult.MISS, LookupResult.HIT, LookupResult.RETRY),
            name=self.tier_type,
            namespace_extra=settings.namespace_extra,
            max_bytes=settings.max_bytes,
            min_free_bytes=settings.min_free_bytes,
            policy=settings.policy,
            load_threads=settings.n_read_threads,
            store_threads=settings.n_write_threads,
            verify=settings.verify,
            events=self._events_on,
            locality=settings.locality,
            pin_ttl_s=settings.pin_ttl_s,
            miss_ttl_s=settings.miss_ttl_s,
            io_timeout_s=settings.io_timeout_s,
            bounce=settings.bounce,
            read_only=settings.read_only,
            layout=settings.layout,
            engine=settings.engine,
            order=compat.KEY_POSITIONS,
            promote_share=settings.promote_share,
            promote_wait_s=settings.promote_wait_s,
            windows=compat.windows(offloading_spec),
            guarded=bool(getattr(offloading_spec, "guards_rows", False)),
        )

    # --- lookups and jobs ---------------------------------------------------------------------------------------

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        """HIT (pinned for the request), MISS, or RETRY in a directory that others write to."""
        return self._tier.lookup(key, req_context)

    def submit_store(self, job_metadata: Any) -> None:
        """Starts storing; the keys come as an unordered set, beside their rows."""
        job, context = job_metadata, job_metadata.req_context
        blocks = len(job.keys)
        self._jobs[job.job_id] = (blocks, ())
        if self._device_fed is not None:
            self._device_fed.begin(blocks * self._row)
        positions = compat.key_positions(context)
        try:
            self._tier.submit_store(job.job_id, _request(context), job.keys, job.chunk_ids, positions)
        except Exception:
            self._not_submitted(job, load=False)

    def submit_load(self, job_metadata: Any) -> None:
        """Starts loading into the job's rows; its request's pins pass to the job."""
        job = job_metadata
        self._jobs[job.job_id] = (len(job.keys), job.keys)
        try:
            self._tier.submit_load(job.job_id, _request(job.req_context), job.keys, job.chunk_ids)
        except Exception:
            self._not_submitted(job, load=True)

    def _not_submitted(self, job: Any, load: bool) -> None:
        """A call after shutdown, or odd rows: reported as failed, never raised into the engine."""
        if not self._is_elsewhere():
            logger.exception("job %s could not be submitted", job.job_id)
        self.has_pending_work = lambda: True  # type: ignore[method-assign]
        self._failed_at_once.append((job.job_id, load, [False] * len(job.keys), 1, 0, 0.0, 0.0))

    def get_finished_jobs(self) -> Iterable[Any]:
        """The jobs that ended, each once."""
        ended = self._tier.poll()
        if self._failed_at_once:
            ended += self._failed_at_once
            self._failed_at_once = []
            self.has_pending_work = self._tier.has_pending_work  # type: ignore[method-assign]
        return [self._result(*e) for e in ended if e[0] in self._jobs]

    def _result(
        self, job_id: int, load: bool, good: list[bool], faults: int, moved: int, device_s: float, _queued: float
    ) -> Any:
        blocks, keys = self._jobs.pop(job_id)
        if load:
            ok = all(good)
            some = None if ok else tuple(k for k, g in zip(keys, good) if g) or None
        else:
            # a store refused within the bound is no fault of the device
            ok, some = faults == 0, None
            if self._device_fed is not None:
                self._device_fed.end(blocks * self._row, device_s, moved, not ok)
        return compat.result(
            job_id=job_id, success=ok, successful_keys=some, transfer_time=device_s, transfer_bytes=moved
        )

    def has_pending_work(self) -> bool:
        """Whether jobs wait, run, or were not reported yet."""
        return self._tier.has_pending_work()

    def drain_jobs(self) -> None:
        """Waits for running I/O; queued work is cancelled and reported."""
        self._tier.drain()

    # --- requests -----------------------------------------------------------------------------------------------

    def on_new_request(self, req_context: Any) -> Any:
        """The default: only blocks that are new to the primary."""
        return RequestOffloadingContext()

    def touch(self, keys: Any, req_context: Any) -> None:
        """Called up to 0.30, with all keys of a request, each step."""
        self._tier.touch(_request(req_context), list(keys))

    def on_request_finished(self, req_context: Any) -> None:
        """Releases the request's pins; its blocks count as used, also those served from host memory."""
        self._tier.finish(_request(req_context), compat.key_positions(req_context) or ())

    # --- events, metrics, end -----------------------------------------------------------------------------------

    def take_events(self) -> Iterable[Any]:
        """Residency changes, oldest first."""
        if not self._events_on:
            return ()
        return [
            compat.event(
                keys=keys, medium=self.medium, removed=removed, locality=self.locality, ownership=self.tier_type
            )
            for removed, keys in self._tier.take_events()
        ]

    def on_schedule_end(self, context: Any) -> None:
        """The requests scheduled in this step hold what was promoted for them."""
        self._tier.end_step(context.new_req_ids)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """The metrics that ``get_stats`` reports. Called with a tier's stanza where no plugin had it checked before."""
        check_one(extra_config)
        return metrics.definitions()

    def get_stats(self) -> Any:
        """What changed since the last call, twice a second at most."""
        now = time.monotonic()
        if now < self._next_stats or self._is_elsewhere():
            return None
        self._next_stats = now + STATS_EVERY_S
        self._forward_logs()
        return self._reporter.report(self._tier.stats())

    def stats(self) -> dict[str, Any]:
        """All numbers, for people and tests."""
        return self._tier.stats()

    def shutdown(self) -> None:
        """Ends running I/O, cancels the rest, lets go of the primary's memory."""
        began = time.monotonic()
        ended = self._tier.shutdown()
        if self._is_elsewhere():
            return
        self._failed_at_once += ended
        self._forward_logs()
        took = time.monotonic() - began
        logger.info("tier %s shut down in %.3f s, %d jobs ended or cancelled", self.tier_type, took, len(ended))

    def _is_elsewhere(self) -> bool:
        """Whether this is a child of the process that opened the tier: nothing is done there, as the log said."""
        return os.getpid() != self._home

    def _forward_logs(self) -> None:
        for level, text in take_logs():
            logger.log(level, "%s", text)


class KvweirFsTier(KvweirTier):
    """``KvweirTier`` with layout ``fs``: one file per block, as vLLM's own file tier lays them out."""

    LAYOUT: ClassVar[str | None] = "fs"


def _request(context: Any) -> Any:
    return getattr(context, "req_id", "")


def _rows_of_bytes(view: memoryview) -> memoryview:
    """The same memory, one row per block, items being bytes whatever they were."""
    if view.format == "b" or view.ndim != 2 or not view.c_contiguous:
        return view
    rows = view.shape[0]
    return view.cast("B").cast("b", shape=[rows, view.nbytes // max(rows, 1)])
