"""Claims about the copying worker of the CPU platform, without an engine: which bytes go where, and when they are told.

Needs a Python environment with vLLM; skipped in others, where ``test_engine.py`` still shows the worker in an engine.
"""

import os
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from child import in_child  # noqa: E402
from kvweir.vllm.cpu import CpuCopyWorker  # noqa: E402

BLOCKS, CHUNKS = 64, 40
# a padded page: 96 bytes in rows of 128
TENSORS = ((128, 96), (64, 64), (64, 64))


class Region:
    """Stands in for the shared region: views side by side in one row."""

    def __init__(self, row: int) -> None:
        self.base = torch.zeros((CHUNKS, row), dtype=torch.int8)
        self._at = 0
        self.cleaned = 0

    def create_next_worker_view(self, size: int) -> Any:
        view = self.base[:, self._at : self._at + size]
        self._at += size
        return view

    def cleanup(self) -> None:
        self.cleaned += 1


def caches() -> Any:
    """Two groups: the first uses the tensors 0 and 1, the second 1 and 2."""
    tensors = [
        SimpleNamespace(tensor=torch.randint(-128, 127, (BLOCKS, page), dtype=torch.int8), page_size_bytes=page)
        for page, _ in TENSORS
    ]
    refs = [SimpleNamespace(tensor_idx=i, page_size_bytes=used) for i, (_, used) in enumerate(TENSORS)]
    return SimpleNamespace(tensors=tensors, group_data_refs=[refs[:2], refs[1:]])


def spec(groups: list[list[int]], firsts: list[int]) -> Any:
    ids = torch.tensor([b for g in groups for b in g], dtype=torch.int32).numpy()
    return SimpleNamespace(block_ids=ids, group_sizes=[len(g) for g in groups], block_indices=firsts)


def chunks_of(groups: list[list[int]], firsts: list[int], per_chunk: int, free: list[int]) -> list[int]:
    n = [-(-(first % per_chunk + len(g)) // per_chunk) if g else 0 for g, first in zip(groups, firsts, strict=True)]
    return [free.pop() for _ in range(sum(n))]


def made(per_chunk: int) -> tuple[CpuCopyWorker, Any, Region]:
    kv, region = caches(), Region(sum(page for page, _ in TENSORS) * per_chunk)
    return CpuCopyWorker(kv, per_chunk, region), kv, region


@pytest.mark.parametrize("per_chunk", [1, 2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_what_was_stored_comes_back_into_other_blocks_byte_for_byte(per_chunk: int, seed: int) -> None:
    chance = random.Random(seed)
    worker, kv, region = made(per_chunk)
    groups = [chance.sample(range(32), chance.randrange(0, 9)) for _ in range(2)]
    firsts = [chance.randrange(0, 7) for _ in range(2)]
    chunks = chunks_of(groups, firsts, per_chunk, chance.sample(range(CHUNKS), CHUNKS))
    host = SimpleNamespace(block_ids=torch.tensor(chunks, dtype=torch.int32).numpy())
    assert worker.submit_store(1, spec(groups, firsts), host)
    worker.wait({1})
    # what the host holds, found by counting blocks one by one
    at = 0
    for group, first, refs in zip(groups, firsts, kv.group_data_refs, strict=True):
        skip = first % per_chunk
        for i, block in enumerate(group):
            chunk, inner = chunks[at + (skip + i) // per_chunk], (skip + i) % per_chunk
            for ref in refs:
                page, used = TENSORS[ref.tensor_idx]
                start = sum(p for p, _ in TENSORS[: ref.tensor_idx]) * per_chunk + inner * page
                got = region.base[chunk, start : start + used]
                assert torch.equal(got, kv.tensors[ref.tensor_idx].tensor[block, :used])
        at += -(-(skip + len(group)) // per_chunk) if group else 0
    before = [t.tensor.clone() for t in kv.tensors]
    moved = [[b + 32 for b in g] for g in groups]
    assert worker.submit_load(2, host, spec(moved, firsts), expedited=seed % 2 == 0)
    worker.wait({2})
    changed = [t.clone() for t in before]
    for group, refs in zip(groups, kv.group_data_refs, strict=True):
        for ref in refs:
            used = ref.page_size_bytes
            for block in group:
                changed[ref.tensor_idx][block + 32, :used] = before[ref.tensor_idx][block, :used]
    assert all(torch.equal(a, b.tensor) for a, b in zip(changed, kv.tensors, strict=True))
    done = worker.get_finished()
    assert [(r.job_id, r.success) for r in done] == [(1, True), (2, True)]
    size = sum(len(g) * sum(r.page_size_bytes for r in refs) for g, refs in zip(groups, kv.group_data_refs, strict=True))
    assert [r.transfer_size for r in done] == [size, size]
    assert worker.get_finished() == []
    worker.shutdown()
    worker.shutdown()
    assert region.cleaned == 1


def test_blocks_and_chunks_that_do_not_fit_are_refused() -> None:
    worker, _, _ = made(2)
    host = SimpleNamespace(block_ids=torch.tensor([1, 2, 3], dtype=torch.int32).numpy())
    with pytest.raises(ValueError, match="2 blocks in 1 chunks were expected, 2 in 3 came"):
        worker.submit_store(1, spec([[4, 5], []], [0, 0]), host)
    worker.wait({1})
    worker.shutdown()


def test_shutdown_ends_what_was_submitted_and_the_thread() -> None:
    worker, _, _ = made(1)
    host = SimpleNamespace(block_ids=torch.arange(20, dtype=torch.int32).numpy())
    for job in range(500):
        assert worker.submit_store(job, spec([list(range(20)), []], [0, 0]), host)
    worker.shutdown()
    assert sorted(r.job_id for r in worker.get_finished()) == list(range(500))
    assert not [t for t in threading.enumerate() if t.name == "kvweir-cpu-copy"]


def test_what_is_submitted_after_the_end_is_reported_failed_once() -> None:
    """Once it lay in a queue that nobody read: never reported, and whoever waited for it waited for ever."""
    worker, kv, _ = made(1)
    host = SimpleNamespace(block_ids=torch.arange(2, dtype=torch.int32).numpy())
    worker.shutdown()
    before = [t.tensor.clone() for t in kv.tensors]
    assert worker.submit_store(1, spec([[4, 5], []], [0, 0]), host)
    assert worker.submit_load(2, host, spec([[4, 5], []], [0, 0]))
    assert worker.submit_load(3, host, spec([[4, 5], []], [0, 0]), expedited=True)
    waits = threading.Thread(target=worker.wait, args=({1, 2, 3},), daemon=True)
    waits.start()
    waits.join(10)
    assert not waits.is_alive()
    assert [(r.job_id, r.success) for r in worker.get_finished()] == [(1, False), (2, False), (3, False)]
    assert worker.get_finished() == []
    assert all(torch.equal(a, t.tensor) for a, t in zip(before, kv.tensors, strict=True))


def test_jobs_submitted_while_the_worker_ends_are_all_reported() -> None:
    for _ in range(20):
        worker, _, _ = made(1)
        host = SimpleNamespace(block_ids=torch.arange(2, dtype=torch.int32).numpy())
        ends = threading.Thread(target=worker.shutdown)
        for job in range(20):
            if job == 10:
                ends.start()
            assert worker.submit_store(job, spec([[4, 5], []], [0, 0]), host)
        ends.join()
        worker.wait(set(range(20)))
        done = worker.get_finished()
        assert sorted(r.job_id for r in done) == list(range(20))
        assert sum(r.success for r in done) >= 10


def test_a_forked_child_copies_nothing_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    worker, _, region = made(1)
    host = SimpleNamespace(block_ids=torch.arange(2, dtype=torch.int32).numpy())

    def calls() -> None:
        assert worker.submit_store(1, spec([[4, 5], []], [0, 0]), host)
        worker.wait({1})
        assert [(r.job_id, r.success) for r in worker.get_finished()] == [(1, False)]
        worker.shutdown()
        worker.shutdown()
        assert region.cleaned == 0
        assert [r.message for r in caplog.records if "was forked" in r.message] == [
            f"pid {os.getpid()} was forked from pid {os.getppid()}, which copies blocks: here every job fails"
        ]

    with worker._state, worker._gate:  # as if the thread had them when the process forked
        assert in_child(calls) == 0
    assert worker.submit_store(1, spec([[4, 5], []], [0, 0]), host)
    worker.wait({1})
    worker.shutdown()
    assert region.cleaned == 1
