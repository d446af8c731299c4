"""One lifetime of an engine: the scheduler's loop around vLLM's real manager.

A step asks the manager in the order in which vLLM's scheduler and its connector do:

1. what runs gets its share of the step; what waits is looked up in order of arrival, all of it, until the step is full:
   put off, admitted with a load under way, or admitted without;
2. new chunks of what runs are offered to the manager, then those of requests that ended since the last step;
3. those requests are reported as finished, and the step's end is;
4. the model runs (``step_s``), with the manager's lock free;
5. copies that ended are reported.
"""

import importlib
import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.v1.kv_offload.base import ReqContext, ScheduleEndContext, get_offload_block_hash, make_offload_key
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from vllm_driver import lookups, versions
from vllm_driver.accelerator import Accelerator
from vllm_driver.copies import Copies
from vllm_driver.meter import Meter
from vllm_driver.request import Request, State
from vllm_driver.shape import Shape

# far above what a test of a few hundred blocks takes
STEPS = 5000


class NeverEnds(AssertionError):
    """A request, or work of the manager, is not over after as many steps as it was given."""


class Driver:
    """An engine with tiers made of ``stanzas``; see the package for how to use it.

    ``spec`` is ``module:Class`` for another specification than vLLM's tiered one; without ``metered`` nothing stands
    between manager and tiers. Other named arguments are those of ``Shape``.
    """

    def __init__(
        self, stanzas: Iterable[dict[str, Any]], *, spec: str | None = None, metered: bool = True, **shape: Any
    ) -> None:
        self.shape = Shape(**shape)
        self.spec = _spec_class(spec)(self.shape.config(list(stanzas)))
        self.manager = self.spec.get_manager()
        self.tiers: list[Any] = list(getattr(self.manager, "secondary_tiers", ()))
        self.meters = [Meter(tier) for tier in self.tiers] if metered else []
        self.accelerator = Accelerator(self.spec, self.shape.chunk_bytes)
        self.copies = Copies(self.accelerator, self.shape)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.steps = 0
        self.refused_stores = 0
        self._ended: list[Request] = []
        self._names = itertools.count(1)
        self._closed = False

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what a test asks -----------------------------------------------------------------------------------------

    def prompt(self, chunks: int, salt: str = "p", shared: int = 0) -> list[Any]:
        """Keys of a prompt in its first group; the other groups' follow from them."""
        return lookups.prompt(chunks, salt, shared)

    def add(self, keys: Sequence[Any], name: str | None = None) -> Request:
        """Queues a request."""
        hashes = [get_offload_block_hash(key) for key in keys]
        groups = [[make_offload_key(h, g) for h in hashes] for g in range(self.shape.groups)]
        context = ReqContext(req_id=name or f"request-{next(self._names)}")
        for of_group in groups:
            for i, key in enumerate(of_group, 1):
                versions.tell_position(context, key, i * self.shape.chunk_tokens)
        with self.locked():
            self.manager.on_new_request(context)
        request = Request(context.req_id, groups, context, arrived=self.steps)
        self.waiting.append(request)
        return request

    def ask(self, keys: Sequence[Any], steps: int = STEPS) -> Request:
        """One request to its end, with its stores."""
        return self.ask_all([keys], steps)[0]

    def ask_all(self, prompts: Iterable[Sequence[Any]], steps: int = STEPS) -> list[Request]:
        """Requests that arrive together, to the end of all of them and of their stores."""
        requests = [self.add(keys) for keys in prompts]
        self.run(steps)
        self.settle(steps)
        return requests

    def run(self, steps: int = STEPS) -> int:
        """Steps until every request has ended; how many that were."""
        return self._step_while(lambda: bool(self.waiting or self.running), steps, "a request did not end")

    def settle(self, steps: int = STEPS) -> int:
        """Steps until nothing is under way, in the tiers neither; how many that were."""
        return self._step_while(self.busy, steps, "work did not end")

    def busy(self) -> bool:
        """Whether an engine would go on stepping."""
        if self.waiting or self.running or self._ended or self.copies.under_way:
            return True
        with self.locked():
            return bool(self.manager.has_pending_work())

    def abort(self, request: Request) -> None:
        """The client went away."""
        if request.ended:
            return
        request.aborted = True
        self._end(request)

    def forget(self, spoil: int = 0xA5) -> None:
        """Empties the primary as a reset of the caches does, whatever is under way; the tiers keep their blocks."""
        with self.locked():
            self.copies.forget()
            versions.reset(self.manager)
            self.accelerator.spoil(spoil)

    def stats(self) -> dict[str, Any]:
        """What vLLM would export since the last call."""
        with self.locked():
            stats = self.manager.get_stats()
        return {} if stats is None else dict(stats.reduce())

    def take_events(self) -> list[Any]:
        """Events since the last call."""
        with self.locked():
            return list(self.manager.take_events())

    def locked(self) -> Any:
        """The manager, undisturbed by its own threads."""
        return versions.exclusively(self.manager)

    def close(self) -> None:
        """The end of the engine, whatever is under way."""
        if self._closed:
            return
        self._closed = True
        self.accelerator.close()
        self.manager.shutdown()

    # --- a step ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One step."""
        due = time.monotonic() + self.shape.step_s
        with self.locked():
            new = self._schedule()
            ended, self._ended = self._ended, []
            for request in [*self.running, *ended]:
                self._offer(request)
            for request in ended:
                self.manager.on_request_finished(request.context)
            self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=new, preempted_req_ids=()))
        self.copies.begin()
        for request in [r for r in self.running if r.computed == r.chunks]:
            self._end(request)
        time.sleep(max(0.0, due - time.monotonic()))
        with self.locked():
            self._report()
        self.steps += 1
        for meter in self.meters:
            meter.end_step()

    def _schedule(self) -> list[str]:
        budget = self.shape.chunks_per_step
        for request in self.running:
            budget -= self._compute(request, budget)
        new: list[str] = []
        for request in list(self.waiting):
            if budget <= 0 or len(self.running) >= self.shape.max_running:
                break
            if request.state is State.LOADING:
                if request.jobs:
                    continue
            else:
                found = self._look_up(request)
                if found is None:
                    request.waited += 1
                    continue
                if not self._fits(request):
                    break
                request.hits = request.computed = request.stored = found
                if found:
                    self._load(request, found)
                    continue
            self.waiting.remove(request)
            request.state = State.RUNNING
            self.running.append(request)
            new.append(request.name)
            budget -= self._compute(request, budget)
        return new

    def _compute(self, request: Request, budget: int) -> int:
        share = min(max(budget, 0), request.chunks - request.computed)
        request.computed += share
        return share

    def _look_up(self, request: Request) -> int | None:
        if request.jobs:
            return None
        windows, context = self.shape.windows, request.context
        found = lookups.loadable(lambda key: self.manager.lookup(key, context), request.keys, windows)
        if versions.TOUCHES:
            for of_group in request.keys:
                self.manager.touch(of_group, context)
        if found and self.copies.loads_any(lookups.needed(request.keys, windows, found)):
            # another request loads them: they will be on the accelerator
            return None
        return found

    def _fits(self, request: Request) -> bool:
        room = self.shape.accelerator_chunks
        held = sum(r.chunks for r in [*self.running, *self.waiting] if r.state is not State.WAITING)
        return room is None or held + request.chunks <= room or held == 0

    def _load(self, request: Request, found: int) -> None:
        keys = lookups.needed(request.keys, self.shape.windows, found)
        source = self.manager.prepare_load(keys, request.context)
        request.state = State.LOADING
        for meter in self.meters:
            meter.used(keys)
        self.copies.load(request, keys, _slots(source))

    def _offer(self, request: Request) -> None:
        keys = [k for of_group in request.keys for k in of_group[request.stored : request.computed]]
        if not keys:
            return
        answer = self.manager.prepare_store(keys, request.context)
        if answer is None:
            # offered again with the next chunks, and once more at the end
            request.refused += 1
            self.refused_stores += 1
            return
        request.stored = request.computed
        if answer.keys_to_store:
            for meter in self.meters:
                meter.replaced(answer.keys_to_store)
            self.copies.store(request, list(answer.keys_to_store), _slots(answer.store_spec))

    def _end(self, request: Request) -> None:
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        request.state, request.steps = State.ENDED, self.steps + 1 - request.arrived
        self._ended.append(request)

    def _report(self) -> None:
        for copy in self.copies.ended():
            if copy.load:
                self.manager.complete_load(set(copy.keys), copy.request.context)
            else:
                self.manager.complete_store(set(copy.keys), copy.request.context)

    # --- waiting --------------------------------------------------------------------------------------------------

    def _step_while(self, go_on: Any, steps: int, what: str) -> int:
        began = self.steps
        while go_on():
            if self.steps - began >= steps:
                raise NeverEnds(self._why(what, steps))
            self.step()
        return self.steps - began

    def _why(self, what: str, steps: int) -> str:
        """Who waits for what."""
        shape, here = self.shape, [*self.waiting, *self.running]
        lines = [
            f"{what} in {steps} steps of {shape.step_s * 1000:g} ms: "
            f"vLLM {versions.VERSION}, {self.spec.num_chunks} slots, KV groups: {shape.groups}, "
            f"{len(here)} requests left, "
            f"{len(self.copies.under_way)} copies under way, {self.refused_stores} stores refused"
        ]
        lines += [f"  {meter}" for meter in self.meters]
        for request in here[:8]:
            loads = " and ".join(str(m.loads_of[request.name]) for m in self.meters) or "unknown"
            lines.append(f"  {request}; {loads} blocks loaded for it")
        if len(here) > 8:
            lines.append(f"  and {len(here) - 8} more")
        return "\n".join(lines)


def _slots(place: Any) -> list[int]:
    return [int(i) for i in place.chunk_ids]


def _spec_class(name: str | None) -> Any:
    if name is None:
        return TieringOffloadingSpec
    module, _, cls = name.partition(":")
    return getattr(importlib.import_module(module), cls)
