"""Copies between the accelerator and the primary's slots: each takes some steps, and touches the bytes at both ends."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm_driver.accelerator import Accelerator
from vllm_driver.request import Request
from vllm_driver.shape import Shape


@dataclass(eq=False)
class Copy:
    """One job of a worker."""

    number: int
    load: bool
    request: Request
    keys: list[Any]
    slots: list[int]
    steps_left: int


class Copies:
    """What is under way, in order of submission."""

    def __init__(self, accelerator: Accelerator, shape: Shape) -> None:
        self.under_way: list[Copy] = []
        self._accelerator = accelerator
        self._shape = shape
        self._numbers = 0
        self._being_loaded: set[Any] = set()

    def load(self, request: Request, keys: list[Any], slots: list[int]) -> None:
        """From slots that the manager holds readable."""
        self._being_loaded.update(keys)
        self._add(True, request, keys, slots, self._shape.load_steps)

    def store(self, request: Request, keys: list[Any], slots: list[int]) -> None:
        """Into slots that the manager has reserved."""
        self._add(False, request, keys, slots, self._shape.store_steps)

    def loads_any(self, keys: Iterable[Any]) -> bool:
        """Whether one of them is being loaded."""
        return not self._being_loaded.isdisjoint(keys)

    def begin(self) -> None:
        """The workers take up what this step submitted."""
        for copy in self.under_way:
            fresh = copy.steps_left == (self._shape.load_steps if copy.load else self._shape.store_steps)
            if fresh and copy.load:
                self._check(copy)
            elif fresh:
                self._accelerator.begin_store(copy.slots)
            copy.steps_left -= 1

    def ended(self) -> list[Copy]:
        """Those that end with this step."""
        ended = [c for c in self.under_way if c.steps_left <= 0]
        self.under_way = [c for c in self.under_way if c.steps_left > 0]
        for copy in ended:
            copy.request.jobs.discard(copy.number)
            if copy.load:
                # pinned until now: nobody may have written meanwhile
                self._check(copy)
                self._being_loaded.difference_update(copy.keys)
            else:
                self._accelerator.end_store(copy.keys, copy.slots)
        return ended

    def forget(self) -> None:
        """A reset: the manager has forgotten them too."""
        for copy in self.under_way:
            copy.request.jobs.discard(copy.number)
        self.under_way.clear()
        self._being_loaded.clear()

    def _add(self, load: bool, request: Request, keys: list[Any], slots: list[int], steps: int) -> None:
        if len(keys) != len(slots):
            raise AssertionError(f"{request.name}: {len(keys)} keys, {len(slots)} slots")
        self._numbers += 1
        request.jobs.add(self._numbers)
        self.under_way.append(Copy(self._numbers, load, request, keys, slots, steps))

    def _check(self, copy: Copy) -> None:
        self._accelerator.check(copy.keys, copy.slots, f"load for {copy.request.name}")
