"""``KvweirCpuOffloadingSpec``: tiered KV offloading on vLLM's CPU platform.

Stock vLLM has everything for it but the worker: ``get_worker`` refuses a platform without copy engines. Here the copies
between the KV cache and the shared region are made by the processor, on a thread of their own, with the interpreter's
lock released. Scheduler, primary tier and secondary tiers are vLLM's own. On other platforms the stock worker is used.

Why a thread is allowed: a store is submitted after the step that computed its blocks, and vLLM waits for it (``wait``)
before the blocks get other content; a load's blocks belong to a request that does not run before the load is reported.
One thread and one queue keep the order in which jobs were submitted. A job that is submitted after the end is reported
failed.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvweir import copy_blocks
from kvweir.vllm import compat

logger = logging.getLogger("vllm.kvweir")

# jobs that wait for the copying thread; a submission beyond them waits for one to end
MAX_QUEUED = 256

# what the versions name differently, newest first
_VIEW_NAMES = ("create_next_worker_view", "create_next_view")


@dataclass(frozen=True)
class _Pages:
    """A tensor whose rows are blocks (in the KV cache) or chunks of several blocks (in the region), as addresses."""

    base: int
    stride: int
    page: int
    blocks_per_row: int

    def addresses(self, rows: Any, skip: int, count: int) -> Any:
        """Where ``count`` consecutive blocks are, the first being block ``skip`` of the first row."""
        starts = self.base + rows.astype(np.int64) * self.stride
        inner = np.arange(self.blocks_per_row, dtype=np.int64) * self.page
        return (starts[:, None] + inner[None, :]).ravel()[skip : skip + count]


@dataclass(frozen=True)
class _Copy:
    """A job: pairs of addresses, for each size."""

    job_id: int
    parts: list[tuple[Any, Any, int]]

    @property
    def size(self) -> int:
        return sum(len(targets) * length for targets, _, length in self.parts)


class CpuCopyWorker(OffloadingWorker):
    """Copies blocks between KV-cache tensors in ordinary memory and the shared region."""

    def __init__(self, kv_caches: Any, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        self._region: SharedOffloadRegion | None = region
        self._blocks_per_chunk = blocks_per_chunk
        self._groups = [
            [(ref.tensor_idx, ref.page_size_bytes) for ref in refs] for refs in kv_caches.group_data_refs
        ]
        # the tensors are held for as long as their addresses are used
        self._held = [_by_block(t.tensor, t.page_size_bytes) for t in kv_caches.tensors]
        self._cache: list[_Pages] = []
        self._host: list[_Pages] = []
        make_view = next(getattr(region, n) for n in _VIEW_NAMES if hasattr(region, n))
        for rows, tensor in zip(list(self._held), kv_caches.tensors, strict=True):
            page = tensor.page_size_bytes
            view = make_view(page * blocks_per_chunk)
            self._cache.append(_Pages(rows.data_ptr(), rows.stride(0), page, 1))
            self._host.append(_Pages(view.data_ptr(), view.stride(0), page, blocks_per_chunk))
        self._home = os.getpid()
        # results of jobs that were submitted in a child of this process; `None` until it was said that nothing is done
        self._elsewhere: list[TransferResult] | None = None
        self._gate = threading.Lock()
        self._state = threading.Condition()
        self._running: set[int] = set()
        self._done: list[TransferResult] = []
        self._jobs: queue.Queue[_Copy | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="kvweir-cpu-copy", daemon=True)
        self._thread.start()

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """KV cache to region."""
        return self._submit(self._plan(job_id, src_spec, dst_spec.block_ids, store=True), now=False)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        """Region to KV cache; an expedited load is waited for in this very step, so it is made at once."""
        return self._submit(self._plan(job_id, dst_spec, src_spec.block_ids, store=False), now=expedited)

    def get_finished(self) -> list[TransferResult]:
        """The jobs that ended since the last call."""
        if self._is_elsewhere():
            done, self._elsewhere = self._elsewhere or [], []
            return done
        with self._state:
            done, self._done = self._done, []
        return done

    def wait(self, job_ids: Iterable[int]) -> None:
        """Returns when none of the jobs is under way; they are reported by ``get_finished`` all the same."""
        if self._is_elsewhere():
            return
        wanted = set(job_ids)
        with self._state:
            self._state.wait_for(lambda: not (wanted & self._running))

    def shutdown(self) -> None:
        """Ends the jobs under way, then lets go of the memory. A second call does nothing."""
        if self._is_elsewhere():
            return
        # nobody submits between the last job and the end
        with self._gate:
            region, self._region = self._region, None
            if region is None:
                return
            self._jobs.put(None)
        self._thread.join()
        self._held.clear()
        region.cleanup()

    def _is_elsewhere(self) -> bool:
        """Whether this is a child of the process that made the worker: the thread and what it locked stayed there."""
        elsewhere = os.getpid() != self._home
        if elsewhere and self._elsewhere is None:
            self._elsewhere = []
            logger.error(
                "pid %d was forked from pid %d, which copies blocks: here every job fails", os.getpid(), self._home
            )
        return elsewhere

    def _submit(self, job: _Copy, now: bool) -> bool:
        if self._is_elsewhere():
            assert self._elsewhere is not None
            self._elsewhere.append(_result(job, good=False, seconds=0.0))
            return True
        with self._gate:
            if self._region is None:
                self._report(_result(job, good=False, seconds=0.0))
            else:
                with self._state:
                    self._running.add(job.job_id)
                if now:
                    self._copy(job)
                else:
                    self._jobs.put(job)
        return True

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._copy(job)

    def _copy(self, job: _Copy) -> None:
        started = time.perf_counter()
        try:
            for targets, sources, length in job.parts:
                copy_blocks(targets, sources, length)
            good = True
        except Exception:
            logger.exception("copying job %d failed", job.job_id)
            good = False
        self._report(_result(job, good, time.perf_counter() - started))

    def _report(self, result: TransferResult) -> None:
        with self._state:
            self._running.discard(result.job_id)
            self._done.append(result)
            self._state.notify_all()

    def _plan(self, job_id: int, cache_spec: Any, chunk_ids: Any, store: bool) -> _Copy:
        """Pairs each block of a job with its place in the chunks.

        A job lists its groups one after the other: ``group_sizes[g]`` blocks of the cache, the first being block
        ``block_indices[g]`` of the request, and the chunks that cover them. The first chunk may begin before.
        """
        parts: list[tuple[Any, Any, int]] = []
        block_at = chunk_at = 0
        for refs, count, first in zip(self._groups, cache_spec.group_sizes, cache_spec.block_indices, strict=True):
            if count == 0:
                continue
            skip = first % self._blocks_per_chunk
            n_chunks = -(-(skip + count) // self._blocks_per_chunk)
            blocks = cache_spec.block_ids[block_at : block_at + count]
            chunks = chunk_ids[chunk_at : chunk_at + n_chunks]
            block_at += count
            chunk_at += n_chunks
            for tensor, length in refs:
                cache = self._cache[tensor].addresses(blocks, 0, count)
                host = self._host[tensor].addresses(chunks, skip, count)
                parts.append((host, cache, length) if store else (cache, host, length))
        if (block_at, chunk_at) != (len(cache_spec.block_ids), len(chunk_ids)):
            raise ValueError(
                f"job {job_id}: {block_at} blocks in {chunk_at} chunks were expected, "
                f"{len(cache_spec.block_ids)} in {len(chunk_ids)} came"
            )
        return _Copy(job_id, parts)


def _result(job: _Copy, good: bool, seconds: float) -> TransferResult:
    return TransferResult(job_id=job.job_id, success=good, transfer_size=job.size, transfer_time=seconds)


def _by_block(tensor: torch.Tensor, page: int) -> torch.Tensor:
    """The same memory as bytes, one row per block."""
    rows = tensor if tensor.dtype == torch.int8 else tensor.view(torch.int8)
    if rows.dim() != 2:
        rows = rows.view(-1, page)
    if rows.device.type != "cpu" or rows.stride(1) != 1 or rows.shape[1] < page:
        raise ValueError(
            f"KV cache of shape {tuple(rows.shape)} and strides {rows.stride()} on {rows.device}: "
            f"blocks of {page} consecutive bytes in ordinary memory are wanted"
        )
    return rows


class KvweirCpuOffloadingSpec(TieringOffloadingSpec):
    """vLLM's tiered offloading, on the CPU platform too."""

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        """Our worker on the CPU platform, the stock one elsewhere."""
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._worker is None:
            self._worker = self._cpu_worker(kv_caches)
        return self._worker

    def _cpu_worker(self, kv_caches: Any) -> CpuCopyWorker:
        if getattr(self.config, "canonical_layout", False):
            raise ValueError("canonical_layout = true: KvweirCpuOffloadingSpec copies blocks as they are; remove it")
        region = compat.open_region(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        try:
            worker = CpuCopyWorker(kv_caches, self.blocks_per_chunk, region)
        except Exception:
            region.cleanup()
            raise
        logger.info("KV offloading on the CPU platform: %d chunks of %d bytes", self.num_chunks, self.kv_bytes_per_chunk)
        return worker
