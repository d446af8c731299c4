"""One contender of ``kvweir-lab contest`` in a process of its own: a tier of Python over a region that all map.

    python peer.py stock|wheel|lmcache

Reads one JSON object per line from stdin and answers each with one on stdout. ``open`` maps the region and makes the
tier; ``store`` and ``load`` move blocks and tell seconds, CPU seconds of this process and seconds of each job;
``duel`` loads one job at a time while stores are kept under way; ``close`` removes nothing. What a tier says to people
goes to stderr.
"""

import hashlib
import json
import mmap
import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def digest(salt: int, n: int) -> bytes:
    """The hash of block ``n``; blocks of another ``salt`` are other blocks."""
    return hashlib.sha256(f"{salt}-{n}".encode()).digest()


class Vllm:
    """A secondary tier of vLLM, called as its manager calls it: stock ``fs``, or the wheel's."""

    def __init__(self, region: mmap.mmap, ask: dict[str, Any], kind: str) -> None:
        import numpy as np
        from vllm.v1.kv_offload import config as kvcfg
        from vllm.v1.kv_offload.base import ReqContext, make_offload_key
        from vllm.v1.kv_offload.tiering.base import TransferJob

        self._np, self._job, self._context, self._key = np, TransferJob, ReqContext, make_offload_key
        row = ask["row"]
        rows = memoryview(region).cast("b", shape=(ask["slots"], row))
        group = kvcfg.OffloadingGroupConfig(tokens_per_block=16, layer_names=("layer.0",), group_id=0)
        config = SimpleNamespace(
            groups=(group,),
            worker_kv_bytes_per_block=row,
            enable_kv_cache_events=False,
            extra_config={},
            engine_id="contest",
            model=SimpleNamespace(name="contest/model", dtype="bfloat16", max_model_len=131072),
            cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
            parallel=SimpleNamespace(
                rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, is_parallelism_agnostic=False
            ),
            replicated_layout=False,
            canonical_layout=False,
            kv_cache_layout=None,
        )
        spec = SimpleNamespace(config=config, blocks_per_chunk=1, kv_events_config=SimpleNamespace(
            enable_kv_cache_events=False
        ))
        how: dict[str, Any] = {"offloading_spec": spec, "primary_kv_view": rows, "tier_type": kind}
        if kind == "stock":
            from vllm.v1.kv_offload.tiering.fs import io
            from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

            self.tier = FileSystemTierManager(root_dir=ask["root"], **how)
            self.about = {
                "compiled": io._HAS_FSIO_C,
                "direct": self.tier._use_o_direct,
                "threads": len(self.tier._pool._threads),
            }
        else:
            from kvweir.vllm import KvweirTier

            self.tier = KvweirTier(
                root_dir=ask["root"], max_bytes=ask["max_bytes"], backpressure_detector=None, **how
            )
            self.about = {}
        self._next = 0

    def prepare(self, salt: int, first: int, slot: int, count: int) -> Any:
        keys = [self._key(digest(salt, n), 0) for n in range(first, first + count)]
        self._next += 1
        slots = self._np.arange(slot, slot + count, dtype=self._np.int32)
        context = self._context(req_id=f"r{self._next}")
        return self._job(job_id=self._next, keys=keys, chunk_ids=slots, is_promotion=False, req_context=context)

    def submit(self, job: Any, load: bool) -> int:
        if load:
            # our tier pins what it is asked for; stock asks the disk from a thread of its own and is spared that
            if not hasattr(self.tier, "_pool"):
                for key in job.keys:
                    self.tier.lookup(key, job.req_context)
            self.tier.submit_load(job)
        else:
            self.tier.submit_store(job)
        return job.job_id

    def poll(self) -> list[int]:
        ended = []
        for result in self.tier.get_finished_jobs():
            if not result.success:
                raise RuntimeError(f"job {result.job_id} failed")
            ended.append(result.job_id)
        return ended

    def close(self) -> None:
        self.tier.shutdown()


class Memory:
    """Gives LMCache's backend the rows of the region that a load is to fill, in its order."""

    def __init__(self, make: Any) -> None:
        self.make, self.rows = make, []

    def allocate(self, _shape: Any, _dtype: Any, _fmt: Any, **_more: Any) -> Any:
        return self.make(self.rows.pop(0))


class LmCache:
    """LMCache's local disk backend with direct I/O; blocks are loaded by its batched call, which its caller waits for."""

    def __init__(self, region: mmap.mmap, ask: dict[str, Any]) -> None:
        import asyncio
        import queue

        import torch
        from lmcache.utils import CacheEngineKey
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
        from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

        self._torch, self._key, row = torch, CacheEngineKey, ask["row"]
        self._all = torch.frombuffer(region, dtype=torch.uint8)
        shape = torch.Size([1, row // 2])

        def make(slot: int) -> Any:
            meta = MemoryObjMetadata(shape, torch.bfloat16, slot * row, row, 1, fmt=MemoryFormat.KV_T2D)
            return TensorMemoryObj(self._all[slot * row : (slot + 1) * row], meta, None)

        self._make, self._memory = make, Memory(make)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="lmcache-loop", daemon=True).start()
        config = LMCacheEngineConfig.from_defaults(
            local_cpu=False,
            local_disk=ask["root"],
            max_local_disk_size=max(ask["max_bytes"], 1 << 30) / (1 << 30),
            extra_config={"use_odirect": True},
        )
        self.tier = LocalDiskBackend(config, self._loop, self._memory, dst_device="cpu")
        self.about = {"direct": self.tier.use_odirect, "threads": self.tier._read_thread_pool._max_workers}
        self._done: Any = queue.SimpleQueue()
        self._left: dict[int, int] = {}
        self._next = 0

    def prepare(self, salt: int, first: int, slot: int, count: int) -> Any:
        self._next += 1
        keys = [
            self._key("contest", 1, 0, int.from_bytes(digest(salt, n)[:8], "big"), self._torch.bfloat16)
            for n in range(first, first + count)
        ]
        return SimpleNamespace(job_id=self._next, keys=keys, slots=list(range(slot, slot + count)))

    def submit(self, job: Any, load: bool) -> int:
        if load:
            # a blocking call: the engine's thread waits for it
            self._memory.rows = list(job.slots)
            if any(o is None for o in self.tier.batched_get_blocking(job.keys)):
                raise RuntimeError(f"job {job.job_id} failed")
            self._done.put(job.job_id)
            return job.job_id
        self._left[job.job_id] = len(job.keys)
        lock = threading.Lock()

        def one(_key: Any) -> None:
            with lock:
                self._left[job.job_id] -= 1
                if self._left[job.job_id] == 0:
                    self._done.put(job.job_id)

        self.tier.batched_submit_put_task(job.keys, [self._make(s) for s in job.slots], on_complete_callback=one)
        return job.job_id

    def poll(self) -> list[int]:
        ended = []
        while not self._done.empty():
            ended.append(self._done.get())
        return ended

    def close(self) -> None:
        self.tier.close()
        self._loop.call_soon_threadsafe(self._loop.stop)


PAUSE = 0.0002


def move(tier: Any, ask: dict[str, Any], load: bool) -> dict[str, Any]:
    """Moves ``blocks`` blocks, ``batch`` per job, at most ``depth`` jobs under way."""
    batch, depth = ask["batch"], ask["depth"]
    jobs = [
        tier.prepare(ask["salt"], ask["first"] + n, ask["slot"] + n, min(batch, ask["blocks"] - n))
        for n in range(0, ask["blocks"], batch)
    ]
    jobs.reverse()
    count, running, times = len(jobs), {}, []
    cpu, began = time.process_time(), time.perf_counter()
    while len(times) < count:
        while jobs and len(running) < depth:
            job = jobs.pop()
            at = time.perf_counter()
            running[tier.submit(job, load)] = at
        ended = tier.poll()
        now = time.perf_counter()
        times += [now - running.pop(i) for i in ended]
        if not ended:
            time.sleep(PAUSE)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "cpu_s": time.process_time() - cpu, "jobs_s": times}


def duel(tier: Any, ask: dict[str, Any]) -> dict[str, Any]:
    """Loads jobs one at a time, while ``depth`` store jobs of other blocks are kept under way."""
    loads, stores = ask["load"], ask["store"]
    running, waiting, times, stored = set(), {}, [], 0
    cpu, began = time.process_time(), time.perf_counter()
    n = loaded = 0
    while len(times) < ask["loads"]:
        while len(running) < stores["depth"]:
            slot = stores["slot"] + (n * stores["batch"]) % stores["blocks"]
            running.add(tier.submit(tier.prepare(stores["salt"], n * stores["batch"], slot, stores["batch"]), False))
            n += 1
        if not waiting:
            at = (loaded * loads["batch"]) % loads["blocks"]
            job = tier.prepare(loads["salt"], loads["first"] + at, loads["slot"] + at, loads["batch"])
            loaded += 1
            at = time.perf_counter()
            waiting[tier.submit(job, True)] = at
        ended = tier.poll()
        now = time.perf_counter()
        for i in ended:
            if i in waiting:
                times.append(now - waiting.pop(i))
            else:
                running.discard(i)
                stored += 1
        if not ended:
            time.sleep(PAUSE)
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    while running:
        running.difference_update(tier.poll())
        time.sleep(PAUSE)
    return {"seconds": seconds, "cpu_s": spent, "jobs_s": times, "stored": stored}


def main() -> None:
    kind, tier = sys.argv[1], None
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            out: dict[str, Any] = {}
            if ask["op"] == "open":
                with open(ask["region"], "r+b") as f:
                    region = mmap.mmap(f.fileno(), ask["slots"] * ask["row"])
                os.makedirs(ask["root"], exist_ok=True)
                tier = LmCache(region, ask) if kind == "lmcache" else Vllm(region, ask, kind)
                out = {"about": tier.about}
            elif ask["op"] == "close":
                tier.close()
            elif ask["op"] == "duel":
                out = duel(tier, ask)
            else:
                out = move(tier, ask, ask["op"] == "load")
        except BaseException as e:
            out = {"error": f"{type(e).__name__}: {e}"}
        answers.write(json.dumps(out) + "\n")
        answers.flush()
    # threads of the tiers may still wait for something
    os._exit(0)


main()
