"""What KV offloading costs vLLM's scheduler thread: every call of its manager, timed by step.

    scripts/vllm-env mgr python benches/vllm_step.py --dir /some/disk
    scripts/vllm-env mgr python benches/vllm_step.py --dir /some/disk --rounds 7 --parts --json out.json
    scripts/vllm-env mgr python benches/vllm_step.py --cases warm,resolve --rounds 3
    scripts/vllm-env mgr python benches/vllm_step.py --tier         # the calls of the tier, made by vLLM's manager

Subjects, in turns within each round:

    stock    vLLM's manager over its own file tier ``fs``
    tier     vLLM's manager over KvweirTier, packed
    ours     KvweirOffloadingSpec's manager over KvweirTier, packed
    floor    a manager whose calls return constants: what the loop, Python's calls and the meter's remainder cost

Cases, each idle and beside one Python thread that never gives up the interpreter's lock of itself:

    cold        a prompt of 32k tokens, 2,048 chunks that nobody has
    hit         the same again: all in the primary
    warm        the same again after the primary was emptied: all on disk
    resolve     3,600 keys on disk, an engine that just started, until the request is scheduled
    waiting     64 requests of 128 chunks on disk wait at once; the primary has room for all
    waiting-2k  the same with a primary of 2,048 slots, a quarter of what they want

The scheduler's loop is that of the tests (``vllm_driver``): a step takes at least a millisecond; the accelerator's
copies are checked, and not timed. ``all`` is the sum over the steps until nothing is left to do, ``worst`` the longest
step, ``asks`` the number of lookups; milliseconds, medians over rounds, then ``all`` over that of ours. "never" stands
where a round did not end in half a minute. The meter's two looks at the clock are taken off every call.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.v1.kv_offload.base import LookupResult, RequestOffloadingContext

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "crates/kvweir-python/tests/helpers"))

from vllm_driver import Driver, Request, State, prompt as prompt_keys  # noqa: E402
from vllm_driver.copies import Copies  # noqa: E402

MANAGER_CALLS = (
    "lookup",
    "get_load_source",
    "prepare_load",
    "touch",
    "complete_load",
    "prepare_store",
    "complete_store",
    "on_new_request",
    "on_request_finished",
    "take_events",
    "on_schedule_end",
    "has_pending_work",
    "get_stats",
)
TIER_CALLS = (
    "lookup",
    "submit_store",
    "submit_load",
    "get_finished_jobs",
    "serve_external_requests",
    "on_new_request",
    "on_request_finished",
    "on_schedule_end",
    "get_stats",
    "take_events",
    "has_pending_work",
    "touch",
)
# called once per key: as little as possible between the two looks at the clock
BY_KEY = ("lookup", "get_load_source")
# answers are iterators
LAZY = ("get_finished_jobs", "take_events")
CHUNKS = 2048
CHUNK_BYTES = 4096
RESOLVE = 3600
WAITING, WAITING_CHUNKS = 64, 128
# a primary with room for whatever a case asks for, below the share of it that plans may take
ROOM, LITTLE_ROOM = 12288, 2048
SUBJECTS = ("stock", "tier", "ours", "floor")
CASES = ("cold", "hit", "warm", "resolve", "waiting", "waiting-2k")
OURS = "kvweir.vllm:KvweirOffloadingSpec"
# a case that takes longer is reported as one that does not end
END_S = 30
Step = dict[str, int]
Timed = dict[str, Any]


class Meter:
    """Sums the time inside the calls of a manager or a tier on the thread that made the meter."""

    def __init__(self, subject: Any, calls: tuple[str, ...]) -> None:
        self._me = threading.get_ident()
        self._now: dict[str, list[int]] = {name: [0, 0] for name in calls}
        self._own: list[int] = []
        self._steps: list[Step] = []
        self.lookups = 0
        for name in calls:
            if (call := getattr(subject, name, None)) is not None:
                setattr(subject, name, self._by_key(name, call) if name in BY_KEY else self._timed(name, call))

    def _by_key(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, sums, own = time.perf_counter_ns, self._now[name], self._own

        def timed(key: Any, context: Any) -> Any:
            began = clock()
            answer = call(key, context)
            sums[0] += clock() - began
            sums[1] += 1
            if sums[1] % 8 == 0:
                began = clock()
                own.append(clock() - began)
            return answer

        return timed

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, sums, lazy = time.perf_counter_ns, self._now[name], name in LAZY
        me, ident = self._me, threading.get_ident

        def timed(*args: Any, **more: Any) -> Any:
            if ident() != me:
                return call(*args, **more)
            began = clock()
            answer = call(*args, **more)
            if lazy:
                answer = list(answer)
            sums[0] += clock() - began
            sums[1] += 1
            return answer

        return timed

    def end_step(self) -> None:
        clock = time.perf_counter_ns
        for _ in range(3):
            began = clock()
            self._own.append(clock() - began)
        own = statistics.median(self._own)
        self._own.clear()
        self.lookups += self._now["lookup"][1]
        self._steps.append({name: max(0, int(took - n * own)) for name, (took, n) in self._now.items() if n})
        for sums in self._now.values():
            sums[:] = [0, 0]

    def take(self) -> tuple[list[Step], int]:
        """The steps since the last call, and the lookups in them."""
        out = self._steps, self.lookups
        self._steps, self.lookups = [], 0
        return out


class Engine(Driver):
    """The tests' scheduler, which asks where hits came from as vLLM 0.33's does, and times its own part of a step."""

    def __init__(self, stanzas: list[dict[str, Any]], **more: Any) -> None:
        self.loop_ns: list[int] = []
        super().__init__(stanzas, metered=False, block_bytes=CHUNK_BYTES, chunks_per_step=512, **more)

    def _schedule(self) -> list[str]:
        began = time.perf_counter_ns()
        new = super()._schedule()
        self.loop_ns.append(time.perf_counter_ns() - began)
        return new

    def _load(self, request: Request, found: int) -> None:
        super()._load(request, found)
        if hasattr(self.manager, "get_load_source"):
            for of_group in request.keys:
                for key in of_group[:found]:
                    self.manager.get_load_source(key, request.context)


class Constants:
    """A manager that answers nothing."""

    def __init__(self, answer: LookupResult) -> None:
        nothing = SimpleNamespace(keys_to_store=(), store_spec=SimpleNamespace(chunk_ids=()), evicted_keys=())
        by_block = RequestOffloadingContext()
        self.lookup = lambda key, context: answer
        self.get_load_source = lambda key, context: None
        self.prepare_load = lambda keys, context: SimpleNamespace(chunk_ids=range(len(keys)))
        self.prepare_store = lambda keys, context: nothing
        self.complete_load = self.complete_store = self.touch = lambda keys, context: None
        self.on_new_request = lambda context: by_block
        self.on_request_finished = self.on_schedule_end = lambda context: None
        self.take_events = lambda: ()
        self.has_pending_work = lambda: False
        self.get_stats = lambda: None


class Floor(Engine):
    """The loop over ``Constants``; slots are not looked at."""

    def __init__(self, answer: LookupResult) -> None:
        super().__init__([], slots=64)
        self._stock, self.manager = self.manager, Constants(answer)
        ignored = SimpleNamespace(check=lambda *_: None, begin_store=lambda *_: None, end_store=lambda *_: None)
        self.copies = Copies(ignored, self.shape)  # type: ignore[arg-type]

    def close(self) -> None:
        self.manager = self._stock
        super().close()


def vllm_loop(answer: LookupResult, keys: list[Any]) -> float:
    """Milliseconds of vLLM's own search for a prefix over ``Constants``, nothing being recorded."""
    scheduler = SimpleNamespace(
        manager=Constants(answer), _events_tracker=SimpleNamespace(record_lookup=lambda *_: None)
    )
    search: Any = OffloadingConnectorScheduler._maximal_prefix_lookup
    began = time.perf_counter_ns()
    search(scheduler, keys, None, None, None, 0)
    return (time.perf_counter_ns() - began) / 1e6


@contextlib.contextmanager
def spinning(on: bool) -> Iterator[None]:
    """One more Python thread that only computes."""
    end = threading.Event()

    def spin() -> None:
        n = 0
        while not end.is_set():
            n += 1

    thread = threading.Thread(target=spin, name="spin", daemon=True)
    if on:
        thread.start()
    try:
        yield
    finally:
        end.set()
        if on:
            thread.join()


def run(engine: Engine, meter: Meter, until: Callable[[], bool] | None = None) -> Timed | None:
    """Steps until nothing is left to do, or until told; what the calls took. None where that never comes."""
    deadline = time.monotonic() + END_S
    engine.loop_ns.clear()
    while engine.busy() and not (until is not None and until()):
        if time.monotonic() > deadline:
            meter.take()
            return None
        engine.step()
        engine.stats()
        engine.take_events()
        meter.end_step()
    steps, lookups = meter.take()
    parts: dict[str, float] = defaultdict(float)
    for step in steps:
        for name, took in step.items():
            parts[name] += took / 1e6
    sums = [sum(s.values()) / 1e6 for s in steps]
    loop = sum(engine.loop_ns) / 1e6
    out = {"all": sum(sums), "worst": max(sums), "lookups": lookups, "steps": len(steps)}
    return {**out, "loop": loop, "parts": dict(parts)}


class Bench:
    """One subject over one directory."""

    def __init__(self, who: str, root: Path, tier_calls: bool) -> None:
        self._who, self._root, self._tier_calls = who, root, tier_calls
        self._old = [prompt_keys(WAITING_CHUNKS, salt=f"waiting {i}") for i in range(WAITING)]
        self._long = prompt_keys(RESOLVE, salt="resolve")

    @contextlib.contextmanager
    def _engine(self, slots: int, answer: LookupResult = LookupResult.HIT) -> Iterator[tuple[Engine, Meter]]:
        if self._who == "floor":
            engine: Engine = Floor(answer)
        elif self._who == "stock":
            engine = Engine([{"type": "fs", "root_dir": str(self._root)}], slots=slots)
        else:
            tier = {"type": "KvweirTier", "module_path": "kvweir.vllm", "layout": "pack", "max_bytes": "4GiB"}
            spec = OURS if self._who == "ours" else None
            engine = Engine([{**tier, "root_dir": str(self._root)}], slots=slots, spec=spec)
        try:
            if self._tier_calls:
                yield engine, Meter(engine.tiers[0], TIER_CALLS)
            else:
                yield engine, Meter(engine.manager, MANAGER_CALLS)
        finally:
            engine.close()

    def fill(self) -> None:
        """Puts on disk what later cases ask for."""
        if self._who == "floor":
            return
        with self._engine(ROOM) as (engine, _):
            engine.ask_all([self._long])
            engine.ask_all(self._old)

    def prompt(self, spin: bool, salt: str) -> Iterator[tuple[str, Timed | None]]:
        """``cold``, ``hit`` and ``warm``."""
        keys = prompt_keys(CHUNKS, salt=salt)
        if self._who == "floor":
            for case, answer in ("cold", LookupResult.MISS), ("hit", LookupResult.HIT), ("warm", LookupResult.HIT):
                with self._engine(64, answer) as (engine, meter), spinning(spin):
                    engine.add(keys)
                    out = run(engine, meter)
                    assert out is not None
                    yield case, out | {"vllm": vllm_loop(answer, keys)}
            return
        with self._engine(ROOM) as (engine, meter):
            for case in ("cold", "hit", "warm"):
                if case == "warm":
                    engine.forget()
                with spinning(spin):
                    request = engine.add(keys)
                    timed = run(engine, meter)
                if timed is not None and request.hits != (0 if case == "cold" else CHUNKS):
                    raise AssertionError(f"{self._who}, {case}: {request.hits} of {CHUNKS} chunks came back")
                yield case, timed

    def resolve(self, spin: bool) -> Timed | None:
        """Until the request may run."""
        with self._engine(ROOM) as (engine, meter):
            with spinning(spin):
                request = engine.add(self._long)
                out = run(engine, meter, lambda: request.state is not State.WAITING)
            if out is not None and request.hits != RESOLVE:
                raise AssertionError(f"{self._who}: {request.hits} of {RESOLVE} keys were found")
            return out

    def waiting(self, spin: bool, slots: int) -> Timed | None:
        """All at once; how many blocks were hit is told too."""
        with self._engine(slots) as (engine, meter):
            with spinning(spin):
                requests = [engine.add(keys) for keys in self._old]
                out = run(engine, meter)
            return None if out is None else out | {"hits": sum(r.hits or 0 for r in requests)}


def samples(who: str, root: Path, wanted: list[str], salt: str, tier: bool) -> Iterator[tuple[bool, str, Timed | None]]:
    """All cases of a subject, idle and not."""
    bench = Bench(who, root, tier)
    if not {"resolve", "waiting", "waiting-2k"}.isdisjoint(wanted):
        bench.fill()
    for spin in (False, True):
        if not {"cold", "hit", "warm"}.isdisjoint(wanted):
            yield from ((spin, case, timed) for case, timed in bench.prompt(spin, f"{salt} {spin}") if case in wanted)
        if "resolve" in wanted:
            yield spin, "resolve", bench.resolve(spin)
        if "waiting" in wanted:
            yield spin, "waiting", bench.waiting(spin, ROOM)
        if "waiting-2k" in wanted:
            yield spin, "waiting-2k", bench.waiting(spin, LITTLE_ROOM)


def median(of: list[Timed | None], what: str) -> float | None:
    """None where one did not end."""
    known = [t.get(what, 0.0) for t in of if t is not None]
    return statistics.median(known) if known and len(known) == len(of) else None


def shown(value: float | None, form: str) -> str:
    return "never" if value is None else format(value, form)


def table(found: dict[tuple[bool, str], dict[str, list[Timed | None]]], subjects: list[str]) -> Iterator[str]:
    """Lines for people."""
    reference = [s for s in subjects if s not in ("ours", "floor")] if "ours" in subjects else []
    heads = [f"{s + ' ' + what:>12}" for what in ("all", "worst") for s in subjects]
    heads += [f"{s + '/ours':>12}" for s in reference] + [f"{s + ' asks':>11}" for s in subjects if s != "floor"]
    yield f"{'':20}" + "".join(heads)
    for (spin, case), by in found.items():
        line = f"{'spin' if spin else 'idle'} {case:15}"
        for what in ("all", "worst"):
            line += "".join(f"{shown(median(by[s], what), '12.3f'):>12}" for s in subjects)
        for s in reference:
            theirs, mine = median(by[s], "all"), median(by["ours"], "all")
            line += f"{theirs / mine:12.1f}" if theirs is not None and mine else f"{'-':>12}"
        line += "".join(f"{shown(median(by[s], 'lookups'), '.0f'):>11}" for s in subjects if s != "floor")
        yield line
    for (spin, case), by in found.items():
        hits = {s: median(by[s], "hits") for s in subjects if s != "floor"}
        if case.startswith("waiting"):
            told = ", ".join(f"{s} {shown(h, '.0f')}" for s, h in hits.items())
            yield f"{'spin' if spin else 'idle'} {case}: blocks hit of {WAITING * WAITING_CHUNKS}: {told}"
        elif "floor" in by and (own := median(by["floor"], "vllm")):
            loop = median(by["floor"], "loop")
            told = f"over constants the loop here takes {shown(loop, '.3f')} ms, vLLM's own search {own:.3f} ms"
            yield f"{'spin' if spin else 'idle'} {case}: {told}"


def parts(found: dict[tuple[bool, str], dict[str, list[Timed | None]]], subjects: list[str]) -> Iterator[str]:
    """Where the time went, by call."""
    for (spin, case), by in found.items():
        for who in subjects:
            ended = [t for t in by[who] if t is not None]
            names = sorted({name for t in ended for name in t["parts"]})
            sums = {n: statistics.median(t["parts"].get(n, 0.0) for t in ended) for n in names}
            told = ", ".join(f"{n} {v:.3f}" for n, v in sorted(sums.items(), key=lambda x: -x[1]) if v >= 0.001)
            steps = shown(median(by[who], "steps"), ".0f")
            yield f"{'spin' if spin else 'idle'} {case:11}{who:6} {steps} steps: {told}"


def some(names: str, of: tuple[str, ...], what: str) -> list[str]:
    """A list as the command line has it."""
    out = names.split(",")
    if unknown := [n for n in out if n not in of]:
        raise SystemExit(f"{what} {', '.join(unknown)}: there are {', '.join(of)}")
    return out


def main() -> None:
    """Runs the rounds and prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--dir", default=".", help="a directory on the disk to use")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--cases", default=",".join(CASES), help="some of them, with commas")
    arguments.add_argument("--subjects", default=",".join(SUBJECTS), help="some of them, with commas")
    arguments.add_argument("--tier", action="store_true", help="time the tier's calls; subjects are stock and tier")
    arguments.add_argument("--parts", action="store_true", help="where the time went, by call")
    arguments.add_argument("--json", help="write all samples here")
    chosen = arguments.parse_args()
    cases = some(chosen.cases, CASES, "cases")
    subjects = ["stock", "tier"] if chosen.tier else some(chosen.subjects, SUBJECTS, "subjects")
    by_case: dict[tuple[bool, str], dict[str, list[Timed | None]]] = {
        (spin, case): {s: [] for s in subjects} for spin in (False, True) for case in cases
    }
    with tempfile.TemporaryDirectory(prefix="kvweir-step-", dir=chosen.dir) as place:
        for n in range(chosen.rounds):
            turn = n % len(subjects)
            for who in subjects[turn:] + subjects[:turn]:
                root = Path(place) / who
                root.mkdir()
                for spin, case, timed in samples(who, root, cases, str(n), chosen.tier):
                    by_case[spin, case][who].append(timed)
                shutil.rmtree(root)
            print(f"round {n + 1} of {chosen.rounds}, load {os.getloadavg()[0]:.2f}", file=sys.stderr)
    print("\n".join(table(by_case, subjects)))
    if chosen.parts:
        print("\n".join(parts(by_case, subjects)))
    if chosen.json:
        out = {f"{'spin' if spin else 'idle'} {case}": by for (spin, case), by in by_case.items()}
        Path(chosen.json).write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
