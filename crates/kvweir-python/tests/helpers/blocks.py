"""A native tier over plain memory, and blocks with known bytes."""

import hashlib
import json
import mmap
import time
from pathlib import Path
from typing import Any

from kvweir import FsTier

MISS, HIT, RETRY = "miss", "hit", "retry"
IDENTITY = json.dumps({"model_name": "m", "dtype": "float16"})


class Request:
    """What the tier wants of a request: its name."""

    def __init__(self, name: str) -> None:
        self.req_id = name


def key(n: int, group: int = 0) -> bytes:
    """The key of block ``n``: a hash of 32 bytes and a group."""
    return hashlib.sha256(b"block %d" % n).digest() + group.to_bytes(4, "big")


def content(n: int, size: int) -> bytes:
    """The bytes of block ``n``."""
    return hashlib.shake_128(b"content %d" % n).digest(size)


class Memory:
    """Page-aligned rows in an anonymous mapping, and the view that vLLM would give."""

    def __init__(self, rows: int = 16, row: int = 4096) -> None:
        self.rows, self.row = rows, row
        self.map = mmap.mmap(-1, rows * row)

    def view(self) -> memoryview:
        """Two dimensions, format ``b``, as vLLM's."""
        return memoryview(self.map).cast("b", shape=[self.rows, self.row])

    def fill(self, slot: int, data: bytes) -> None:
        """Writes a row."""
        self.map[slot * self.row : slot * self.row + len(data)] = data

    def read(self, slot: int) -> bytes:
        """Reads a row."""
        return self.map[slot * self.row : (slot + 1) * self.row]


def open_tier(memory: Memory, root: Path, **settings: Any) -> FsTier:
    """A tier over ``memory``; bounded unless told otherwise."""
    settings.setdefault("max_bytes", 64 << 20)
    return FsTier(memory.view(), str(root), IDENTITY, 0, (MISS, HIT, RETRY), **settings)


def wait(tier: FsTier, jobs: int = 1, seconds: float = 20.0) -> list[tuple[Any, ...]]:
    """Polls until ``jobs`` jobs ended."""
    ended: list[tuple[Any, ...]] = []
    end = time.monotonic() + seconds
    while len(ended) < jobs:
        ended += tier.poll()
        if time.monotonic() > end:
            raise TimeoutError(f"{len(ended)} of {jobs} jobs ended: {ended}")
        time.sleep(0.001)
    return ended


def store(tier: FsTier, memory: Memory, blocks: list[int], job: int = 1) -> tuple[Any, ...]:
    """Stores blocks from the rows 0, 1, ... and waits."""
    for slot, n in enumerate(blocks):
        memory.fill(slot, content(n, memory.row))
    tier.submit_store(job, "writer", [key(n) for n in blocks], list(range(len(blocks))))
    return wait(tier)[0]
