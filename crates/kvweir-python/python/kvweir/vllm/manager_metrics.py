"""The manager's numbers under the names that vLLM's own manager exports, and what only ours has."""

import time
from typing import Any

from kvweir.vllm import compat

# between two reports; gauges are those of the moment
EVERY_S = 0.1
PRIMARY = ("0:primary",)
# of the manager, without labels: name -> (documentation, number, whether a counter)
OWN = {
    "vllm:kvweir_manager_held_slots": ("Slots held for requests that wait to be scheduled.", "held_slots", False),
    "vllm:kvweir_manager_cut_requests": (
        "Plans that left out a part of a hit for which the primary had no room.",
        "cut_requests",
        True,
    ),
    "vllm:kvweir_manager_held_back_requests": (
        "Requests that waited until others had loaded what was promoted for them.",
        "held_back_requests",
        True,
    ),
}


def definitions() -> dict[str, Any]:
    """Metric definitions for vLLM's front end, beside those of its tiering specification."""
    from vllm.v1.kv_offload import base

    gauge = getattr(base, "OffloadingGaugeMetadata", None)
    counter = getattr(base, "OffloadingCounterMetadata", None)
    if gauge is None or counter is None:
        return {}
    return {name: (counter if counts else gauge)(documentation=text) for name, (text, _, counts) in OWN.items()}


class Reporter:
    """Turns snapshots into what changed since the last one."""

    def __init__(self, manager: Any, slots: int, row: int, types: list[str]) -> None:
        self._manager = manager
        self._slots, self._row = max(slots, 1), row
        self._labels = [(f"{place}:{name}",) for place, name in enumerate(types, 1)]
        self._new = compat.stats_class()
        self._names = compat.metric_names()
        self._told: dict[Any, float] = {}
        self._next = 0.0

    def report(self) -> Any:
        """An OffloadingConnectorStats, or None where this version has none or nothing is due."""
        now = time.monotonic()
        if self._new is None or now < self._next:
            return None
        self._next = now + EVERY_S
        numbers = self._manager.numbers()
        if not numbers:
            return None
        out = self._new()
        self._primary(out, numbers)
        for place, (n, label) in enumerate(zip(numbers["tiers"], self._labels, strict=True)):
            self._tier(out, n, label)
            self._pressure(out, place, n, label)
        for name, (_, key, counts) in OWN.items():
            if counts:
                self._count(out, name, (), numbers[key])
            else:
                out.set_gauge(name, numbers[key])
        return out

    def _primary(self, out: Any, n: dict[str, Any]) -> None:
        names = self._names
        writing, referenced = n["writing_slots"], n["referenced_slots"]
        self._gauge(out, names.get("CPU_CACHE_USAGE_PERC"), (writing + referenced) / self._slots)
        self._gauge(out, names.get("CPU_CACHE_WRITE_USAGE_PERC"), writing / self._slots)
        self._gauge(out, names.get("CPU_CACHE_READ_USAGE_PERC"), referenced / self._slots)
        self._count(out, names.get("PROMOTION_ALLOCATION_FAILURES"), (), n["promotions_without_room"])
        self._count(out, names.get("CHUNK_QUERIES"), PRIMARY, n["primary_queries"])
        self._count(out, names.get("CHUNK_HITS"), PRIMARY, n["primary_hits"])
        if (size := names.get("CPU_ALLOCATION_SIZE")) is not None:
            for blocks in n["allocations"]:
                out.observe_histogram(size, blocks)

    def _tier(self, out: Any, n: dict[str, Any], label: tuple[str]) -> None:
        names = self._names
        for name, value in (
            ("CHUNK_QUERIES", n["queries"]),
            ("CHUNK_HITS", n["hits"]),
            ("READ_BYTES", n["loaded_blocks"] * self._row),
            ("WRITE_BYTES", n["stored_blocks"] * self._row),
            ("READ_TIME", n["load_seconds"]),
            ("WRITE_TIME", n["store_seconds"]),
            ("PROMOTION_JOB_FAILURES", n["failed_loads"]),
            ("CASCADE_JOB_FAILURES", n["failed_stores"]),
        ):
            self._count(out, names.get(name), label, value)
        for name, value in (
            ("PRIMARY_WRITE_USAGE_PERC", n["loading_blocks"] / self._slots),
            ("PRIMARY_READ_USAGE_PERC", n["storing_blocks"] / self._slots),
            ("ACTIVE_PROMOTION_JOBS", n["active_loads"]),
            ("ACTIVE_CASCADE_JOBS", n["active_stores"]),
        ):
            self._gauge(out, names.get(name), value, label)
        if (latency := names.get("PROMOTION_LATENCY")) is not None:
            for seconds, good in n["latencies"]:
                out.observe_histogram(latency, seconds, (*label, "success" if good else "failure"))

    def _pressure(self, out: Any, place: int, n: dict[str, Any], label: tuple[str]) -> None:
        names = self._names
        detector = getattr(self._manager.secondary_tiers[place], "bp_detector", None)
        if detector is None:
            return
        if self._manager.gated_natively[place]:
            # the object stands for its settings
            ema, stores, blocks = n["store_latency_ema"], n["stores_dropped"], n["blocks_dropped"]
            self._count(out, names.get("BACKPRESSURE_STORES_DROPPED"), label, stores)
            self._count(out, names.get("BACKPRESSURE_BLOCKS_DROPPED"), label, blocks)
        else:
            ema = detector.stats.get("store_latency_ema")
            stores, blocks = detector.policy.pop_stores_dropped()
            self._add(out, names.get("BACKPRESSURE_STORES_DROPPED"), label, stores)
            self._add(out, names.get("BACKPRESSURE_BLOCKS_DROPPED"), label, blocks)
        if ema is not None:
            self._gauge(out, names.get("BACKPRESSURE_STORE_LATENCY_EMA"), ema, label)

    def _gauge(self, out: Any, name: str | None, value: float, label: tuple[str, ...] = ()) -> None:
        if name is not None:
            out.set_gauge(name, value, label)

    def _count(self, out: Any, name: str | None, label: tuple[str, ...], now: float) -> None:
        more = now - self._told.get((name, label), 0)
        if more > 0:
            self._told[name, label] = now
            self._add(out, name, label, more)

    def _add(self, out: Any, name: str | None, label: tuple[str, ...], more: float) -> None:
        if name is not None and more > 0:
            out.increase_counter(name, more, label)
