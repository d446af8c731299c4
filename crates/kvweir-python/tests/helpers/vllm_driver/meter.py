"""Counts and times what vLLM asks of a tier, and follows the blocks that it loads."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

CALLS = (
    "lookup",
    "submit_store",
    "submit_load",
    "get_finished_jobs",
    "on_new_request",
    "on_request_finished",
    "on_schedule_end",
    "serve_external_requests",
    "touch",
    "has_pending_work",
    "drain_jobs",
    "take_events",
    "get_stats",
    "shutdown",
)


class Call:
    """One kind of call: how often, how long in all, how long at worst."""

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.worst_s = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.count += 1
        self.total_s += seconds
        self.worst_s = max(self.worst_s, seconds)


class Meter:
    """Stands in front of a tier's calls."""

    def __init__(self, tier: Any) -> None:
        self.tier = tier
        self.calls: dict[str, Call] = {name: Call() for name in CALLS}
        # calls of each step, the last one being under way
        self.history: list[Counter[str]] = [Counter()]
        self.lookups: Counter[str] = Counter()
        self.loads_of: Counter[str] = Counter()
        self.loaded_blocks = self.used_blocks = 0
        self.stored_blocks = self.failed_blocks = 0
        self._jobs: dict[int, tuple[bool, tuple[Any, ...]]] = {}
        self._unused: set[Any] = set()
        for name in CALLS:
            if (call := getattr(tier, name, None)) is not None:
                setattr(tier, name, self._in_front_of(name, call))

    def end_step(self) -> None:
        """The calls that follow belong to the next step."""
        self.history.append(Counter())

    def used(self, keys: Iterable[Any]) -> None:
        """These go to the accelerator: what the tier loaded of them was of use."""
        for key in keys:
            if key in self._unused:
                self._unused.discard(key)
                self.used_blocks += 1

    def replaced(self, keys: Iterable[Any]) -> None:
        """These are stored anew: what the tier loaded of them was gone."""
        self._unused.difference_update(keys)

    @property
    def wasted_blocks(self) -> int:
        """Loaded, and gone before anybody used them."""
        return self.loaded_blocks - self.used_blocks - len(self._unused)

    def _in_front_of(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, note = time.perf_counter, self._note

        def measured(*args: Any, **named: Any) -> Any:
            began = clock()
            answer = call(*args, **named)
            if name in ("get_finished_jobs", "take_events"):
                answer = list(answer)
            took = clock() - began
            self.calls[name].add(took)
            self.history[-1][name] += 1
            note(name, args, answer)
            return answer

        return measured

    def _note(self, name: str, args: tuple[Any, ...], answer: Any) -> None:
        if name == "lookup":
            self.lookups[answer.name] += 1
        elif name in ("submit_load", "submit_store"):
            job = args[0]
            load = name == "submit_load"
            self._jobs[job.job_id] = (load, tuple(job.keys))
            if load and job.req_context is not None:
                self.loads_of[job.req_context.req_id] += len(job.keys)
        elif name == "get_finished_jobs":
            for result in answer:
                self._ended(result)

    def _ended(self, result: Any) -> None:
        load, keys = self._jobs.pop(result.job_id, (False, ()))
        good = keys if result.success else tuple(getattr(result, "successful_keys", None) or ())
        self.failed_blocks += len(keys) - len(good)
        if not load:
            self.stored_blocks += len(good)
            return
        self.loaded_blocks += len(good)
        self._unused.update(good)

    def __str__(self) -> str:
        answers = ", ".join(f"{n} {name}" for name, n in sorted(self.lookups.items())) or "none"
        return (
            f"{self.tier.tier_type}: lookups {answers}; "
            f"{self.loaded_blocks} blocks loaded, {self.used_blocks} of them used, {self.wasted_blocks} for nothing; "
            f"{self.stored_blocks} stored, {self.failed_blocks} failed"
        )
