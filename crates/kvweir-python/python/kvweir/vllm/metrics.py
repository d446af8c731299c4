"""kvweir's numbers as vLLM metrics: ``vllm:kvweir_*`` with the label ``tier``."""

from typing import Any

PREFIX = "vllm:kvweir_"

# name -> (documentation, how to read it from FsTier.stats())
GAUGES: dict[str, tuple[str, Any]] = {
    "resident_bytes": ("Bytes below the root: blocks, trailers, temporaries, directories.", "resident_bytes"),
    "reserved_bytes": ("Bytes promised to stores under way.", "reserved_bytes"),
    "bound_bytes": ("The configured bound; absent when unbounded.", "bound_bytes"),
    "effective_bound_bytes": ("The bound in force.", "effective_bound_bytes"),
    "blocks": ("Blocks on disk.", "blocks"),
    "pinned_blocks": ("Blocks that a request or load holds.", "pinned_blocks"),
    "oldest_age_seconds": ("Age of the next block to be evicted.", "oldest_age_seconds"),
    "queued_blocks": ("Blocks waiting for an I/O worker.", "queued_blocks"),
    "startup_seconds": ("From opening the root to ready.", "startup_seconds"),
    "recovered_blocks": ("Blocks found at start.", "recovered_blocks"),
    "breaker_state": ("Whether the tier is asked at all: 0 closed (it is), 1 half-open, 2 open.", "breaker_state"),
    "hung_operations": ("Operations given up whose I/O has not returned.", "hung_operations"),
    "promised_slots": ("Slots of the primary promised to waiting requests.", "promised_slots"),
}
COUNTERS: dict[str, tuple[str, Any]] = {
    "stored_blocks": ("Blocks written.", "stored_blocks"),
    "stored_bytes": ("Bytes written, trailers included.", "stored_bytes"),
    "present_blocks": ("Stores of blocks that were there already.", "present_blocks"),
    "loaded_blocks": ("Blocks read and found good.", "loaded_blocks"),
    "loaded_bytes": ("Bytes read, trailers included.", "loaded_bytes"),
    "load_failures": ("Blocks that did not load.", "load_failures"),
    "verification_failures": ("Blocks whose checksum, key or size was wrong.", "verification_failures"),
    "unlink_failures": ("Files that could not be removed.", "unlink_failures"),
    "pin_leases_expired": ("Requests whose pins were taken back.", "pin_leases_expired"),
    "breaker_opened": ("How often the breaker opened.", "breaker_opened"),
    "jobs_timed_out": ("Jobs given up at their deadline.", "jobs_timed_out"),
    "stores_held": ("How often stores were left waiting because loads ran.", "stores_held"),
    "promotions_cut_requests": ("Requests whose hit was cut: it did not fit the primary.", "promotions_cut_requests"),
    "promotions_cut_blocks": ("Blocks held and not promoted, since they did not fit.", "promotions_cut_blocks"),
    "promotions_held_back_requests": ("Requests that waited for others' promotions.", "promotions_held_back_requests"),
    "promotions_repeated_blocks": ("Blocks promoted again: evicted before they were read.", "promotions_repeated_blocks"),
    "promotions_refused_blocks": ("Blocks for which the primary had no slot.", "promotions_refused_blocks"),
    "store_device_seconds": ("Time the device worked on stores.", "store_device_seconds"),
    "load_device_seconds": ("Time the device worked on loads.", "load_device_seconds"),
}
# with a second label, reason
BY_REASON: dict[str, tuple[str, str]] = {
    "evicted_blocks": ("Blocks gone, by reason.", "evicted_blocks"),
    "evicted_bytes": ("Bytes gone, by reason.", "evicted_bytes"),
    "refused_blocks": ("Blocks not stored, by reason.", "refused_blocks"),
}


def definitions() -> dict[str, Any]:
    """Metric definitions for vLLM's front end."""
    from vllm.v1.kv_offload import base

    gauge = getattr(base, "OffloadingGaugeMetadata", None)
    counter = getattr(base, "OffloadingCounterMetadata", None)
    if gauge is None or counter is None:
        return {}
    out: dict[str, Any] = {}
    for name, (text, _) in GAUGES.items():
        out[PREFIX + name] = gauge(documentation=text, labelnames=("tier",))
    for name, (text, _) in COUNTERS.items():
        out[PREFIX + name] = counter(documentation=text, labelnames=("tier",))
    for name, (text, _) in BY_REASON.items():
        out[PREFIX + name] = counter(documentation=text, labelnames=("tier", "reason"))
    return out


class Reporter:
    """Turns snapshots into what changed since the last one."""

    def __init__(self, label: str) -> None:
        try:
            from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
                OffloadingConnectorStats,
            )
        except ImportError:
            self._new: Any = None
        else:
            self._new = OffloadingConnectorStats if hasattr(OffloadingConnectorStats, "set_gauge") else None
        self._label = label
        alone = (label,)
        self._gauges = [(PREFIX + name, key, alone) for name, (_, key) in GAUGES.items()]
        self._counters = [(PREFIX + name, key, alone) for name, (_, key) in COUNTERS.items()]
        self._by_reason = [(PREFIX + name, key) for name, (_, key) in BY_REASON.items()]
        self._told: dict[tuple[str, tuple[str, ...]], float] = {}

    def report(self, stats: dict[str, Any]) -> Any:
        """An OffloadingConnectorStats, or None where this version has none."""
        if self._new is None:
            return None
        out = self._new()
        for name, key, labels in self._gauges:
            if (now := stats.get(key)) is not None:
                out.set_gauge(name, now, labels)
        for name, key, labels in self._counters:
            if now := stats[key]:
                self._count(out, name, labels, now)
        for name, key in self._by_reason:
            for reason, now in stats[key].items():
                if now:
                    self._count(out, name, (self._label, reason), now)
        return out

    def _count(self, out: Any, name: str, labels: tuple[str, ...], now: float) -> None:
        more = now - self._told.get((name, labels), 0)
        if more > 0:
            self._told[name, labels] = now
            out.increase_counter(name, more, labels)
