"""The accelerator's side of the shared region: computes values, copies them into slots, compares what comes back.

A chunk's value depends on its key alone, so whoever computes it computes the same.
"""

import hashlib
from typing import Any

import numpy as np

from vllm_driver import versions

# in a slot whose copy is under way
RUBBISH = 0xEE


class WrongBytes(AssertionError):
    """A slot that was called readable holds something else than its chunk."""


class Accelerator:
    """Reads and writes slots as vLLM's worker does, in the same memory."""

    def __init__(self, spec: Any, chunk_bytes: int) -> None:
        self._region = versions.worker_region(spec)
        self._size = chunk_bytes
        self.slots: Any = self._region.create_next_worker_view(chunk_bytes).numpy().view(np.uint8)
        self.checked = 0

    def value(self, key: bytes) -> Any:
        """What the model would compute for a key."""
        seed = int.from_bytes(hashlib.blake2b(bytes(key), digest_size=16).digest(), "little")
        return np.random.Generator(np.random.Philox(key=seed)).integers(0, 256, self._size, dtype=np.uint8)

    def begin_store(self, slots: list[int]) -> None:
        """The copy out is under way."""
        self.slots[slots] = RUBBISH

    def end_store(self, keys: list[bytes], slots: list[int]) -> None:
        """The copy out is complete."""
        for key, slot in zip(keys, slots, strict=True):
            self.slots[slot] = self.value(key)

    def check(self, keys: list[bytes], slots: list[int], whose: str) -> None:
        """Compares slots that are being copied in."""
        for key, slot in zip(keys, slots, strict=True):
            want, got = self.value(key), self.slots[slot]
            self.checked += 1
            if not np.array_equal(want, got):
                differ = np.flatnonzero(want != got)
                rubbish = " (a store into it had not ended)" if bool((got == RUBBISH).all()) else ""
                raise WrongBytes(
                    f"{whose}: slot {slot} differs from chunk {bytes(key).hex()[:16]} of group "
                    f"{int.from_bytes(bytes(key)[-4:], 'big')} in {len(differ)} of {self._size} bytes, "
                    f"the first at {differ[0]}{rubbish}"
                )

    def spoil(self, byte: int) -> None:
        """Fills all slots: what is read before it was written shows."""
        self.slots[:] = byte

    def close(self) -> None:
        """Lets go of the region."""
        self.slots = np.empty((0, self._size), dtype=np.uint8)
        self._region.cleanup()
