"""The numbers of an engine: slots of the primary, sizes of blocks, KV groups, limits of a step."""

import copy
import mmap
import os
import uuid
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.kv_offload import config as offload

from vllm_driver import versions

TOKENS_PER_BLOCK = 16


@dataclass(frozen=True)
class Shape:
    """All that an engine's configuration says; sizes are those of one worker."""

    # of the primary
    slots: int = 64
    block_bytes: int = 16384
    blocks_per_chunk: int = 1
    groups: int = 1
    # for each group None (attention over all) or a sliding window in chunks
    windows: tuple[int | None, ...] = ()
    # the least time of a step: what the model takes
    step_s: float = 0.001
    # what a step computes at most, and how many requests run at a time
    chunks_per_step: int = 512
    max_running: int = 256
    # what the accelerator holds; None: enough for all
    accelerator_chunks: int | None = None
    # how many steps a copy is under way; a store begins a step after it was prepared
    load_steps: int = 1
    store_steps: int = 2
    model: str = "driver/model"
    dtype: str = "bfloat16"
    # how vLLM lays out its cache: a name of KVCacheLayout, or None where it is not resolved
    kv_cache_layout: str | None = None
    events: bool = False
    # more of the connector's configuration
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.groups)
        object.__setattr__(self, "groups", len(self.windows))

    @property
    def chunk_bytes(self) -> int:
        """What a slot holds."""
        return self.block_bytes * self.blocks_per_chunk

    @property
    def chunk_tokens(self) -> int:
        """What a slot holds, in tokens."""
        return TOKENS_PER_BLOCK * self.blocks_per_chunk

    def config(self, tiers: list[dict[str, Any]]) -> Any:
        """vLLM's configuration of an engine of its own with these tiers."""
        row = -(-self.chunk_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        groups = tuple(
            versions.made(
                offload.OffloadingGroupConfig,
                tokens_per_block=TOKENS_PER_BLOCK,
                layer_names=(f"layer.{g}",),
                group_id=g,
                sliding_window_size_in_chunks=window,
            )
            for g, window in enumerate(self.windows)
        )
        return versions.made(
            offload.OffloadingConfig,
            groups=groups,
            worker_kv_bytes_per_block=self.block_bytes,
            enable_kv_cache_events=self.events,
            extra_config={
                "spec_name": "TieringOffloadingSpec",
                "cpu_bytes_to_use": row * self.slots,
                # vLLM takes stanzas apart
                "secondary_tiers": copy.deepcopy(tiers),
                **self.extra,
            },
            engine_id=f"driver-{os.getpid()}-{uuid.uuid4().hex[:12]}",
            model=versions.made(
                offload.OffloadingModelConfig, name=self.model, dtype=self.dtype, max_model_len=1 << 17
            ),
            cache=versions.made(
                offload.OffloadingCacheConfig,
                tokens_per_hash=TOKENS_PER_BLOCK,
                blocks_per_chunk=self.blocks_per_chunk,
            ),
            parallel=_one_worker(),
            replicated_layout=False,
            canonical_layout=False,
            kv_cache_layout=self.kv_cache_layout,
        )


def _one_worker() -> Any:
    return versions.made(
        offload.OffloadingParallelConfig,
        rank=0,
        world_size=1,
        tp_size=1,
        pp_size=1,
        pcp_size=1,
        dcp_size=1,
        data_parallel_index=0,
        data_parallel_size=1,
        data_parallel_rank_local=None,
        is_parallelism_agnostic=False,
    )
