"""What a tier costs vLLM's scheduler thread: KvweirFsTier beside stock ``fs``, in one run.

    scripts/vllm-env mgr python benches/vllm_step.py --dir /some/disk [--rounds 7]

Drives vLLM's own tiering manager with the scheduler loop of the tests (``vllm_driver``). Two questions, each idle and
with one Python thread that never gives up the interpreter's lock of itself:

* a 32k-token prompt of 2,048 chunks, cold and then warm (primary dropped): the time inside the tier's calls, summed by
  step. ``worst`` is the longest step, ``asking`` the median of the steps in which the tier was asked for keys, ``all``
  the sum over the prompt;
* 3,600 keys on disk: from the first lookup until all were answered HIT, with a pause of a millisecond between passes,
  as a step would make.

The meter's own cost, found with a call that does nothing beside every eighth lookup of the step, is taken off both sides.
Tiers take turns within a round, and rounds repeat; medians are printed, then stock over ours.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, ReqContext

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "crates/kvweir-python/tests/helpers"))

from vllm_driver import Driver, prompt as prompt_keys  # noqa: E402

CALLS = (
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
CHUNKS = 2048
CHUNK_BYTES = 4096
RESOLVE = 3600


def _nothing(_key: Any, _context: Any) -> None:
    """A call that does nothing, to weigh the meter with."""


class Meter:
    """Sums the time inside a tier's calls on the thread that made the meter."""

    def __init__(self, tier: Any) -> None:
        self._me = threading.get_ident()
        self.now: dict[str, int] = defaultdict(int)
        self._own: list[int] = []
        self.steps: list[dict[str, int]] = []
        for name in CALLS:
            call = getattr(tier, name, None)
            if call is not None:
                setattr(tier, name, self._timed(name, call))

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, now, me, ident = time.perf_counter_ns, self.now, self._me, threading.get_ident
        if name == "lookup":
            # called thousands of times per step: as little as possible between the two looks at the clock
            nothing, own = _nothing, self._own

            def lookup(key: Any, context: Any) -> Any:
                began = clock()
                answer = call(key, context)
                now["lookup"] += clock() - began
                now["lookups"] += 1
                if now["lookups"] % 8 == 0:
                    began = clock()
                    nothing(key, context)
                    own.append(clock() - began)
                return answer

            return lookup

        def timed(*args: Any, **more: Any) -> Any:
            if ident() != me:
                return call(*args, **more)
            began = clock()
            answer = call(*args, **more)
            if name in ("get_finished_jobs", "take_events"):
                answer = list(answer)
            now[name] += clock() - began
            return answer

        return timed

    def end_step(self) -> None:
        lookups, own = self.now.pop("lookups", 0), self._own
        if lookups and own:
            self.now["lookup"] = max(1, int(self.now["lookup"] - lookups * statistics.median(own)))
        own.clear()
        self.steps.append(dict(self.now))
        self.now.clear()

    def take(self) -> list[dict[str, int]]:
        steps, self.steps = self.steps, []
        return steps


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


def run(engine: Driver, meter: Meter) -> list[dict[str, int]]:
    """Steps until nothing is left to do; the time in the tier's calls, by step."""
    deadline = time.monotonic() + 300
    while True:
        if not engine.busy():
            return meter.take()
        if time.monotonic() > deadline:
            raise TimeoutError("the engine does not come to rest")
        engine.step()
        engine.stats()
        engine.take_events()
        meter.end_step()


def by_step(steps: list[dict[str, int]]) -> dict[str, float]:
    """Microseconds: the longest step, the usual step that asked, all."""
    sums = [sum(s.values()) / 1e3 for s in steps]
    asking = [sum(s.values()) / 1e3 for s in steps if s.get("lookup", 0) > 0]
    return {"worst": max(sums), "asking": statistics.median(asking), "all": sum(sums)}


def prompt(tier: dict[str, Any], spin: bool, salt: str) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """A cold and a warm pass of one prompt; also where the time went."""
    engine = Driver([tier], slots=CHUNKS + 64, block_bytes=CHUNK_BYTES, chunks_per_step=512, metered=False)
    try:
        meter = Meter(engine.tiers[0])
        keys = prompt_keys(CHUNKS, salt=salt)
        out, parts = {}, {}
        for name in ("cold", "warm"):
            with spinning(spin):
                request = engine.add(keys)
                steps = run(engine, meter)
            if name == "warm" and request.hits != CHUNKS:
                raise AssertionError(f"{request.hits} of {CHUNKS} chunks came back")
            out |= {f"{name} {k}": v for k, v in by_step(steps).items()}
            parts[name] = {c: sum(s.get(c, 0) for s in steps) / 1e3 for c in CALLS}
            engine.forget()
        return out, parts
    finally:
        engine.close()


def resolve(tier: dict[str, Any], spin: bool, salt: str) -> dict[str, float]:
    """Microseconds until all keys of a prompt on disk were answered HIT."""
    engine = Driver([tier], slots=RESOLVE + 64, block_bytes=CHUNK_BYTES, chunks_per_step=512, metered=False)
    try:
        meter = Meter(engine.tiers[0])
        keys = prompt_keys(RESOLVE, salt=salt)
        engine.add(keys)
        run(engine, meter)
    finally:
        engine.close()
    engine = Driver([tier], slots=64, block_bytes=CHUNK_BYTES, metered=False)
    try:
        asked, context = engine.tiers[0], ReqContext(req_id="resolve")
        asked.on_new_request(context)
        with spinning(spin):
            time.sleep(0.05)
            began = time.perf_counter_ns()
            while True:
                answers = [asked.lookup(k, context) for k in keys]
                if all(a is LookupResult.HIT for a in answers):
                    break
                if LookupResult.MISS in answers:
                    raise AssertionError("a stored key was not found")
                asked.on_schedule_end(None)
                time.sleep(0.001)
            took = (time.perf_counter_ns() - began) / 1e3
        asked.on_request_finished(context)
        return {"3600 keys": took}
    finally:
        engine.close()


def main() -> None:
    """Runs the rounds and prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--dir", default=".", help="a directory on the disk to use")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--parts", action="store_true", help="where the time of the prompt went, by call")
    arguments.add_argument("--json", help="write all samples here")
    chosen = arguments.parse_args()
    samples: dict[tuple[str, bool], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    where: dict[tuple[str, bool, str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="kvweir-step-", dir=chosen.dir) as place:
        for n in range(chosen.rounds):
            for spin in (False, True):
                for who in ("kvweir", "fs") if n % 2 == 0 else ("fs", "kvweir"):
                    root = str(Path(place) / who)
                    tier: dict[str, Any] = {"type": "fs", "root_dir": root}
                    if who == "kvweir":
                        tier = {"type": "KvweirFsTier", "module_path": "kvweir.vllm", "root_dir": root}
                        tier["max_bytes"] = "4GiB"
                    salt = f"{n}-{spin}"
                    out, parts = prompt(dict(tier), spin, f"p{salt}")
                    out |= resolve(dict(tier), spin, f"r{salt}")
                    for name, value in out.items():
                        samples[who, spin][name].append(value)
                    for phase, calls in parts.items():
                        for call, value in calls.items():
                            where[who, spin, phase, call].append(value)
            print(f"round {n + 1} of {chosen.rounds}", file=sys.stderr)
    med = {k: {name: statistics.median(v) for name, v in s.items()} for k, s in samples.items()}
    print(f"{'':12} {'':12} {'kvweir us':>12} {'fs us':>12} {'fs/kvweir':>10}")
    for spin in (False, True):
        for name in med["kvweir", spin]:
            ours, stock = med["kvweir", spin][name], med["fs", spin][name]
            print(f"{'spinning' if spin else 'idle':12} {name:12} {ours:12.0f} {stock:12.0f} {stock / ours:10.1f}")
    if chosen.parts:
        for (who, spin, phase, call), values in sorted(where.items()):
            if statistics.median(values) > 1:
                print(f"{who:7} {'spinning' if spin else 'idle':9} {phase:5} {call:24} {statistics.median(values):10.0f}")
    if chosen.json:
        Path(chosen.json).write_text(json.dumps({f"{w} {s}": v for (w, s), v in samples.items()}, indent=1))


if __name__ == "__main__":
    main()
