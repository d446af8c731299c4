"""The differences between vLLM's versions, in one table; nothing else asks for a version.

What a version lacks is found out by looking at the interface, so that a version not listed works if its interface does.
"""

import dataclasses
import inspect
from typing import Any

SUPPORTED = "0.30, 0.31, 0.32 and 0.33"

try:
    from vllm.v1.kv_offload import base as _base
    from vllm.v1.kv_offload.file_mapper import FileMapper
    from vllm.v1.kv_offload.tiering import base as _tiering
except ImportError as e:
    raise ImportError(f"kvweir.vllm needs vLLM {SUPPORTED}: this one has no tiered KV offloading ({e})") from e

try:
    # vLLM's own policies look at a detector only if it is its EMA detector
    from vllm.v1.kv_offload.tiering.backpressure import DropAccountingPolicy as PolicyBase
    from vllm.v1.kv_offload.tiering.backpressure import EMABackpressureDetector as DetectorBase
except ImportError:  # before 0.31
    DetectorBase = PolicyBase = object  # type: ignore[assignment,misc]

JobResult = _tiering.JobResult
LookupResult = _base.LookupResult
Medium = _base.Medium
OffloadingEvent = _base.OffloadingEvent
RequestOffloadingContext = _base.RequestOffloadingContext
SecondaryTierManager = _tiering.SecondaryTierManager
OffloadingManager = _base.OffloadingManager
ParentManager = getattr(_tiering, "ParentManager", None)
TransferJob = getattr(_tiering, "TransferJob", None)

for _needed in ("chunk_ids",):
    if TransferJob is None or _needed not in {f.name for f in dataclasses.fields(TransferJob)}:
        raise ImportError(f"kvweir.vllm needs vLLM {SUPPORTED}: this one's TransferJob has no {_needed}")


def _fields(cls: Any) -> frozenset[str]:
    return frozenset(f.name for f in dataclasses.fields(cls))


def _parameters(f: Any) -> frozenset[str]:
    return frozenset(inspect.signature(f).parameters)


# what -> whether this version has it
HAS = {
    "detector": "backpressure_detector" in _parameters(SecondaryTierManager.__init__),  # 0.31
    "locality": hasattr(_base, "Locality"),  # 0.31
    "stats": hasattr(SecondaryTierManager, "get_stats"),
    "manager_lock": hasattr(_base.OffloadingManager, "lock"),  # 0.33
    "metadata_events": "metadata_only" in _fields(OffloadingEvent),
    "reset_flushed": hasattr(_base.OffloadingManager, "on_reset_flushed"),  # 0.33
}
# of a request's context: key -> end token, in prefix order within each KV-cache group (0.31)
KEY_POSITIONS = "_offload_key_positions"
# the same, where this version has it
ORDER = KEY_POSITIONS if KEY_POSITIONS in _fields(_base.ReqContext) else None
_RESULT = _fields(JobResult)  # transfer_bytes: 0.31
_EVENT = _fields(OffloadingEvent)  # locality, ownership
_MAPPER = _parameters(FileMapper.from_offloading_spec)


def result(**known: Any) -> Any:
    """A JobResult with the fields that this version has."""
    return JobResult(**{k: v for k, v in known.items() if k in _RESULT})


def event(**known: Any) -> Any:
    """An OffloadingEvent with the fields that this version has."""
    return OffloadingEvent(**{k: v for k, v in known.items() if k in _EVENT})


def locality(word: str | None) -> Any:
    """vLLM's enum for a locality, if it has one."""
    return _base.Locality(word.upper()) if word is not None and HAS["locality"] else None


def init_base(tier: Any, spec: Any, view: memoryview, tier_type: str, detector: Any) -> None:
    """Calls the base class with what its version takes."""
    more = {"backpressure_detector": detector} if HAS["detector"] else {}
    SecondaryTierManager.__init__(
        tier, offloading_spec=spec, primary_kv_view=view, tier_type=tier_type, **more
    )


def file_mapper(root: str, spec: Any) -> Any:
    """vLLM's own mapping of keys to files: it names the namespace."""
    known = {
        "root_dir": root,
        "offloading_spec": spec,
        "blocks_per_file": getattr(spec, "blocks_per_chunk", None) or getattr(spec, "block_size_factor", 1),
        "parallel_agnostic": True,
    }
    return FileMapper.from_offloading_spec(**{k: v for k, v in known.items() if k in _MAPPER})


# the layout that vLLM's offloading connector asks for, and every backend but two grants: stock's directory
_USUAL_LAYOUT = "LHNC"
_LAYOUT_ALIASES = {"NHD": "LBNHC", "HND": "LBHNC"}


def identity(mapper: Any, spec: Any) -> dict[str, Any]:
    """The fields of the namespace: vLLM's own, and what it leaves out where it changes the bytes of a row.

    A row holds what lies between the block axis of vLLM's cache, so two layouts that differ only in where that axis
    stands give the same bytes. A canonical format names its layout itself; None is a layout not resolved yet.
    """
    fields = dict(mapper.get_run_config())
    if "canonical_format" in fields:
        return fields
    layout = getattr(getattr(spec, "config", None), "kv_cache_layout", None)
    name = _LAYOUT_ALIASES.get(str(layout), str(layout)) if layout is not None else f"B{_USUAL_LAYOUT}"
    fields.update(_sizes_left_out(fields, name, spec))
    # heads or layers outside the block axis are gathered piece by piece: such a layout stands for itself
    row = name.replace("B", "") if name.find("B") in (0, 1) else name
    if row != _USUAL_LAYOUT:
        fields["kv_cache_layout"] = row
    return fields


def _sizes_left_out(fields: dict[str, Any], layout: str, spec: Any) -> dict[str, Any]:
    """The sizes of an engine that vLLM takes for agnostic of them, where its rows are not.

    A row is what the workers have of a chunk, one after the other. Tensor-parallel ones have some heads each: the bytes
    of a single worker's only if heads are the outermost axis. Pipeline-parallel ones have some layers each: only if
    layers are. vLLM looks at the model and not at the layout.
    """
    parallel = getattr(getattr(spec, "config", None), "parallel", None)
    tp, pp = getattr(parallel, "tp_size", 1), getattr(parallel, "pp_size", 1)
    if "replicated_layout" in fields or fields.get("parallel_agnostic") is False:
        return {}
    heads_first = layout == "BHLNC" and fields.get("blocks_per_file") == 1
    alike = pp == 1 if heads_first else tp == 1 and layout.find("L") in (0, 1)
    return {} if alike or tp == pp == 1 else {"tp_size": tp, "pp_size": pp}


def key_positions(context: Any) -> dict[bytes, int] | None:
    """Where each of the request's keys ends, whichever tier served it; None where the version does not tell."""
    return getattr(context, KEY_POSITIONS, None)


def events_enabled(spec: Any) -> bool:
    """Whether vLLM publishes KV events at all."""
    config = getattr(spec, "kv_events_config", None)
    return bool(getattr(config, "enable_kv_cache_events", False))


def known_windows(spec: Any) -> list[int | None] | None:
    """As ``windows``; None where the version does not tell them (before 0.33)."""
    from vllm.v1.kv_offload import config

    tells = "sliding_window_size_in_chunks" in _fields(config.OffloadingGroupConfig)
    return windows(spec) if tells else None


def windows(spec: Any) -> list[int | None]:
    """Per KV-cache group, the chunks that a request needs at most; None where attention reaches back to the first."""
    groups = getattr(getattr(spec, "config", None), "groups", None) or ()
    return [getattr(g, "sliding_window_size_in_chunks", None) for g in groups]


# --- for the manager --------------------------------------------------------------------------------------------------


def words() -> dict[str, Any]:
    """What the native manager returns and makes, by name."""
    import numpy as np
    from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
    except ImportError:  # before 0.32
        host = None
    else:
        host = CacheHitSource.HOST
    return {
        "miss": LookupResult.MISS,
        "hit": LookupResult.HIT,
        "hit_pending": LookupResult.HIT_PENDING,
        "retry": LookupResult.RETRY,
        "by_block": RequestOffloadingContext(),
        "by_request": RequestOffloadingContext(policy=_base.OffloadPolicy.REQUEST_LEVEL),
        "prepared": _base.PrepareStoreOutput,
        "place": CPULoadStoreSpec,
        "from_buffer": np.frombuffer,
        "int32": np.int32,
        "host": host,
        "everything": getattr(getattr(_base, "TierFilter", None), "ALL", None),
    }


def job(job_id: int, keys: Any, rows: Any, is_promotion: bool, context: Any) -> Any:
    """A TransferJob."""
    return TransferJob(job_id=job_id, keys=keys, chunk_ids=rows, is_promotion=is_promotion, req_context=context)


def serves(tier: Any) -> bool:
    """Whether a tier has a ``serve_external_requests`` of its own."""
    return _overrides(tier, "serve_external_requests")


def hears_ends(tier: Any) -> bool:
    """Whether a tier has an ``on_schedule_end`` of its own."""
    return _overrides(tier, "on_schedule_end")


def _overrides(tier: Any, name: str) -> bool:
    own = getattr(type(tier), name, None)
    return getattr(tier, name, None) is not None and own is not getattr(SecondaryTierManager, name, None)


def stats_class() -> Any:
    """What metrics are reported in; None where the version has no such thing."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
    except ImportError:
        return None
    return OffloadingConnectorStats if hasattr(OffloadingConnectorStats, "set_gauge") else None


def metric_names() -> dict[str, str]:
    """The names of vLLM's metrics of managers, by constant, as far as this version has them."""
    from vllm.v1.kv_offload.cpu import common

    classes = (getattr(common, "CPUOffloadingMetrics", None), getattr(_tiering, "TieringOffloadingMetrics", None))
    return {
        name: value
        for cls in classes
        if cls is not None
        for name, value in vars(cls).items()
        if name.isupper() and isinstance(value, str)
    }


def primary_info(spec: Any) -> dict[str, Any]:
    """The labels of the primary tier (0.33)."""
    info = getattr(spec, "cpu_info", None)
    return dict(info.as_config_info()) if info is not None else {}


# what the versions name differently: ours -> theirs, newest first
_REGION_NAMES = {
    "num_chunks": ("num_chunks", "num_blocks"),
    "kv_bytes_per_chunk": ("kv_bytes_per_chunk", "kv_bytes_per_block"),
}


def open_region(**known: Any) -> Any:
    """A SharedOffloadRegion with the arguments that this version takes."""
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

    takes = _parameters(SharedOffloadRegion.__init__)
    names = {k: next((n for n in _REGION_NAMES.get(k, (k,)) if n in takes), None) for k in known}
    return SharedOffloadRegion(**{n: known[k] for k, n in names.items() if n is not None})
