"""What users of ``vllm serve`` feel of KV offloading: the real server on CPU with a tiny model, on loopback.

    python3 benches/vllm_serve.py --dir /some/disk
    python3 benches/vllm_serve.py --dir /some/disk --rounds 3 --seconds 30 --json out.json
    python3 benches/vllm_serve.py --tokens 32000 --subjects stock,ours --parts latency
    python3 benches/vllm_serve.py --env cpu                      # vLLM 0.32 as published, not 0.33

Subjects, in turns within each round, a server of its own for each:

    stock    vLLM's manager over its own file tier ``fs``
    tier     vLLM's manager over KvweirTier, packed
    ours     KvweirOffloadingSpec's manager over KvweirTier, packed

On CPU vLLM's manager needs KvweirCpuOffloadingSpec, which adds the copies and nothing else. Each server is asked:

    latency  Six prompts are computed; the accelerator holds one of them, the primary two. Then four streams decode:
             alone for a while (quiet), and while the six prompts come again from disk, twice each (beside), the first
             time asked again at once, when the accelerator has it (held: what the server itself costs). Told are times
             between two tokens of a stream, beside and held being those that overlap with the time from a prompt's
             arrival to its first token; and the time to that token (TTFT).
    load     Eight clients ask prompts of 2,048 tokens, chosen at random of a working set four times the primary, each
             after its last answer; a first pass has computed them all.

A quarter of a minute to a minute goes by until a server is up. Answers are compared with the first of the same prompt.
The model computes on one processor, the first, so that front end and client get another (VLLM_CPU_OMP_THREADS_BIND
names others): two are needed, with nothing else on them. Where TCP paces (bbr) it runs in a network of its own, which
takes the right to make one.
"""

import argparse
import functools
import http.client
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "crates/kvweir-python/tests"
sys.path[:0] = [str(TESTS / "helpers"), str(TESTS / "e2e")]

import host  # noqa: E402
from engine import prompt  # noqa: E402
from server import ANSWER_S, Server  # noqa: E402

SUBJECTS = ("stock", "tier", "ours")
PARTS = ("latency", "load")
# of the tiny model
TOKEN_BYTES, BLOCK_TOKENS = 4096, 32
LONG = 6
# contexts long enough that a step takes the model longer than the front end and the client need to hand on its tokens
STREAMS, STREAM_CONTEXT, STREAM_TOKENS = 4, 4096, 8192
CLIENTS, CLIENT_TOKENS = 8, 2048
# what a stream may have come to
STREAM_ROOM = 9216
# a working set of so many primaries
TIMES = 4
# lets stores reach the disk
SETTLE_S = 3.0
PAUSE_S = 0.3
# until killed processes have let go of their memory
GONE_S = 0.5
# seeds of the prompts
LONG_SEED, STREAM_SEED, LOAD_SEED = 1000, 2000, 5000
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"
OWN_NETWORK = "KVWEIR_OWN_NETWORK"
EXTERNAL = "vllm:external_prefix_cache_hits_total"


@dataclass
class Streamed:
    """An answer token by token."""

    asked: float
    times: list[float]
    text: str

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.asked


@functools.cache
def body(seed: int, length: int, tokens: int) -> str:
    """A request for a greedy answer."""
    wanted = {"model": "tiny", "prompt": prompt(seed, length), "max_tokens": tokens, "temperature": 0}
    return json.dumps({**wanted, "ignore_eos": True, "stream": True})


def tokens_of(server: Server, seed: int, length: int, tokens: int) -> Iterator[tuple[float, str]]:
    """Asks; when each token came, and its text. Who no longer listens has hung up."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_S)
    try:
        text = body(seed, length, tokens)
        connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.read()[:500]!r}")
        for line in answer:
            if line.startswith(b"data: {"):
                yield time.monotonic(), json.loads(line[6:])["choices"][0]["text"]
    finally:
        connection.close()


def stream(server: Server, seed: int, length: int, tokens: int) -> Streamed:
    """The whole answer."""
    body(seed, length, tokens)
    asked = time.monotonic()
    all_ = list(tokens_of(server, seed, length, tokens))
    if not all_:
        raise RuntimeError(f"no token came: see {server.log}")
    return Streamed(asked, [at for at, _ in all_], "".join(text for _, text in all_))


@contextmanager
def threads(run: Callable[[int], None], count: int, end: threading.Event) -> Iterator[None]:
    """Runs ``run`` on so many threads until the block is over; what one raised is raised."""
    failed: list[BaseException] = []

    def guarded(n: int) -> None:
        try:
            run(n)
        except Exception as e:
            failed.append(e)

    all_ = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(count)]
    for t in all_:
        t.start()
    try:
        yield
    finally:
        end.set()
        for t in all_:
            t.join(ANSWER_S)
    if failed:
        raise failed[0]


def quantile(values: list[float], share: float) -> float:
    """The value below which this share of them lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def spread(name: str, seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    values = {"p50": quantile(seconds, 0.5), "p99": quantile(seconds, 0.99), "worst": quantile(seconds, 1)}
    return {f"{name} {k} ms": v * 1e3 for k, v in values.items()}


def latency(server: Server, tokens: int, seconds: float) -> dict[str, float]:
    """Inter-token latency of streams, and TTFT of long prompts beside them."""
    first = [stream(server, LONG_SEED + i, tokens, 4) for i in range(LONG)]
    time.sleep(SETTLE_S)
    gaps: list[tuple[float, float]] = []
    began = [threading.Event() for _ in range(STREAMS)]
    end = threading.Event()

    def decode(n: int) -> None:
        last = 0.0
        for at, _ in tokens_of(server, STREAM_SEED + n, STREAM_CONTEXT, STREAM_TOKENS):
            if began[n].is_set():
                gaps.append((last, at))
            last = at
            began[n].set()
            if end.is_set():
                return
        raise RuntimeError(f"a stream ended before it was told to: fewer than {STREAM_TOKENS} tokens are wanted")

    again: list[tuple[int, Streamed]] = []
    held: list[tuple[int, Streamed]] = []
    with threads(decode, STREAMS, end):
        for event in began:
            event.wait(ANSWER_S)
        before = server.metrics().get(EXTERNAL, 0.0)
        since = time.monotonic()
        time.sleep(seconds)
        over = time.monotonic()
        for n, answers in enumerate([again, held] * LONG + [again] * LONG):
            i = n // 2 if n < 2 * LONG else n - 2 * LONG
            answers.append((i, stream(server, LONG_SEED + i, tokens, 4)))
            time.sleep(PAUSE_S)
    hit = server.metrics().get(EXTERNAL, 0.0) - before
    out = spread("quiet", [b - a for a, b in gaps if a >= since and b <= over])
    for name, answers in ("beside", again), ("held", held):
        windows = [(s.asked, s.times[0]) for _, s in answers]
        out |= spread(name, [b - a for a, b in gaps if any(a < till and b > since for since, till in windows)])
    out["beside/quiet p99"] = out["beside p99 ms"] / out["quiet p99 ms"]
    warm = [s.first for _, s in again]
    out |= {"TTFT cold ms": statistics.median(s.first for s in first) * 1e3}
    out |= {"TTFT warm ms": statistics.median(warm) * 1e3, "TTFT warm p90 ms": quantile(warm, 0.9) * 1e3}
    return out | {
        "TTFT held ms": statistics.median(s.first for _, s in held) * 1e3,
        "tokens hit %": 100 * hit / (2 * LONG * tokens),
        "other answers": sum(s.text != first[i].text for i, s in again + held),
    }


def load(server: Server, primary: int, seconds: float) -> dict[str, float]:
    """Requests per second of clients whose prompts do not fit in the primary."""
    count = TIMES * primary // TOKEN_BYTES // CLIENT_TOKENS
    first = [stream(server, LOAD_SEED + i, CLIENT_TOKENS, 8).text for i in range(count)]
    time.sleep(SETTLE_S)
    took: list[float] = []
    other: list[int] = []
    end = threading.Event()

    def ask(n: int) -> None:
        choice = random.Random(n)
        while not end.is_set():
            i = choice.randrange(count)
            answer = stream(server, LOAD_SEED + i, CLIENT_TOKENS, 8)
            if not end.is_set():
                took.append(answer.first)
                other.extend([i] if answer.text != first[i] else [])

    with threads(ask, CLIENTS, end):
        time.sleep(seconds)
    return {
        "requests/s": len(took) / seconds,
        "load TTFT p50 ms": quantile(took, 0.5) * 1e3,
        "load TTFT p99 ms": quantile(took, 0.99) * 1e3,
        "load other answers": len(other),
    }


def arguments_of(who: str, root: Path, tokens: int, primary: int) -> list[str]:
    """What the server is told beyond, and other than, what the tests' server has; of two the later counts."""
    tiers = [{"type": "fs", "root_dir": str(root)}]
    if who != "stock":
        tiers = [host.tier(root, type="KvweirTier", layout="pack", max_bytes="8GiB")]
    stanza = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "KvweirOffloadingSpec" if who == "ours" else "KvweirCpuOffloadingSpec",
            "spec_module_path": "kvweir.vllm",
            "cpu_bytes_to_use": primary,
            "secondary_tiers": tiers,
        },
    }
    most = max(tokens + 512, STREAM_CONTEXT + STREAM_TOKENS)
    # room for one long prompt and the streams
    blocks = (tokens + STREAMS * STREAM_ROOM) // BLOCK_TOKENS
    out = ["--kv-transfer-config", json.dumps(stanza), "--max-model-len", str(most)]
    out += ["--hf-overrides", json.dumps({"max_position_embeddings": most})]
    return [*out, "--max-num-batched-tokens", "2048", "--num-gpu-blocks-override", str(blocks)]


@contextmanager
def serving(env: str, who: str, place: Path, tokens: int, primary: int) -> Iterator[Server]:
    """A server over an empty directory; nothing is left of it."""
    root, there = place / who, set(host.shared_regions())
    root.mkdir()
    try:
        server = Server(env, place / f"{who}.log", [], *arguments_of(who, root, tokens, primary))
        try:
            # what the server has to say is not part of the table
            with redirect_stdout(sys.stderr), server:
                try:
                    yield server
                finally:
                    # so that it takes its own shared memory with it
                    with suppress(subprocess.TimeoutExpired):
                        server.terminate()
        finally:
            # also one that never came up
            host.stop(server.process)
    finally:
        time.sleep(GONE_S)
        for region in set(host.shared_regions()) - there:
            # others' engines start and end meanwhile
            if not host.in_use(region):
                region.unlink(missing_ok=True)
        shutil.rmtree(root, ignore_errors=True)


def table(found: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    """Medians over rounds."""
    subjects = list(found)
    yield f"{'':22}" + "".join(f"{s:>12}" for s in subjects)
    names = [n for n in next(iter(found.values()))[0] if n != "machine load"]
    for name in [*names, "machine load"]:
        yield f"{name:22}" + "".join(f"{statistics.median(r[name] for r in found[s]):12.2f}" for s in subjects)


def some(names: str, of: tuple[str, ...], what: str) -> list[str]:
    """A list as the command line has it."""
    out = names.split(",")
    if unknown := [n for n in out if n not in of]:
        raise SystemExit(f"{what} {', '.join(unknown)}: there are {', '.join(of)}")
    return out


def own_network() -> None:
    """Starts again in a network of its own, where TCP does not pace.

    With bbr, the default here and there, single streams were seen to stand for up to 12 s on loopback and then to get
    their tokens all at once, beside others that were served; without it for 2 s at most, on a machine with other work.
    """
    if OWN_NETWORK in os.environ or Path(CONGESTION).read_text().strip() != "bbr":
        return
    prepare = f'ip link set lo up && echo reno >{CONGESTION} && exec "$@"'
    # nothing but loopback is there: vLLM would look for an address of the machine
    environment = {**os.environ, OWN_NETWORK: "1", "VLLM_HOST_IP": "127.0.0.1"}
    command = ["unshare", "--net", "sh", "-c", prepare, "sh", sys.executable, *sys.argv]
    os.execvpe(command[0], command, environment)


def main() -> None:
    """Runs the rounds and prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--dir", default=".", help="a directory on the disk to use")
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--seconds", type=float, default=20, help="of the quiet time, and of the load")
    arguments.add_argument("--tokens", type=int, default=16000, help="of a long prompt")
    arguments.add_argument("--subjects", default=",".join(SUBJECTS), help="some of them, with commas")
    arguments.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas")
    arguments.add_argument("--env", default="cpu33", choices=["cpu33", "cpu"], help="of scripts/vllm-env")
    arguments.add_argument("--json", help="write all samples here")
    chosen = arguments.parse_args()
    subjects, todo = some(chosen.subjects, SUBJECTS, "subjects"), some(chosen.parts, PARTS, "parts")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    own_network()
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0")
    # two long prompts
    primary = 2 * (chosen.tokens + 384) * TOKEN_BYTES
    found: dict[str, list[dict[str, float]]] = {s: [] for s in subjects}
    place = Path(tempfile.mkdtemp(prefix="kvweir-serve-", dir=chosen.dir))
    try:
        for n in range(chosen.rounds):
            turn = n % len(subjects)
            for who in subjects[turn:] + subjects[:turn]:
                with serving(chosen.env, who, place, chosen.tokens, primary) as server:
                    out: dict[str, float] = {}
                    if "latency" in todo:
                        out |= latency(server, chosen.tokens, chosen.seconds)
                    if "load" in todo:
                        out |= load(server, primary, chosen.seconds)
                found[who].append(out | {"machine load": os.getloadavg()[0]})
                told = ", ".join(f"{k} {v:.2f}" for k, v in found[who][-1].items())
                print(f"round {n + 1} of {chosen.rounds}, {who}: {told}", file=sys.stderr, flush=True)
    except BaseException:
        print(f"logs of the servers are in {place}", file=sys.stderr)
        raise
    shutil.rmtree(place, ignore_errors=True)
    print("\n".join(table(found)))
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
