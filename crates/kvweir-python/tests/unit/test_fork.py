"""A child that is forked from the process that opened a tier: it has none of its threads, and nothing hangs for that."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from blocks import HIT, MISS, Memory, Request, key, open_tier, store, wait
from child import in_child

from kvweir import ClosedError, FsTier, take_logs


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "was forked from" in r.getMessage()]


def call_all(tier: FsTier) -> None:
    assert tier.lookup(key(1), Request("r")) == MISS
    for submit in (tier.submit_store, tier.submit_load):
        with pytest.raises(ClosedError, match=f"pid {os.getpid()} was forked from pid {os.getppid()}"):
            submit(1, "r", [key(1)], [0])
    for ask in (tier.namespace_dir, tier.layout):
        with pytest.raises(ClosedError, match="open another after the fork"):
            ask()
    assert tier.poll() == [] and not tier.has_pending_work() and tier.take_events() == []
    tier.touch("r", [key(1)])
    tier.finish("r", [key(1)])
    tier.drain()
    assert tier.stats()["blocks"] == 0
    assert tier.shutdown() == [] and tier.shutdown() == []
    assert tier.lookup(key(1), Request("r")) == MISS


@pytest.mark.parametrize("layout", ["fs", "pack"])
def test_in_a_child_every_call_does_nothing_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, layout: str
) -> None:
    """Once `shutdown` raised PanicException there, and calls waited for locks of threads that were not there."""
    memory = Memory()
    tier = open_tier(memory, tmp_path, layout=layout)
    store(tier, memory, [1, 2])

    def calls() -> None:
        call_all(tier)
        assert len(told(caplog)) == 1, told(caplog)
        # a tier of its own, of whose parent's log nothing is told
        own_memory = Memory()
        own = open_tier(own_memory, tmp_path, layout=layout)
        store(own, own_memory, [3])
        own.shutdown()
        assert not any("resident_bytes" in text and str(os.getppid()) in text for _, text in take_logs())

    busy = threading.Event()

    def work() -> None:
        # jobs run and drains wait while it forks; of more blocks than the bound holds, the first would go
        job = 10
        while not busy.is_set():
            tier.submit_store(job, "w", [key(10 + job % 500)], [3])
            tier.drain()
            job += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(40):
            assert in_child(calls) == 0
    finally:
        busy.set()
        thread.join()
    assert told(caplog) == []
    assert tier.lookup(key(1), Request("r")) == HIT
    tier.shutdown()


def test_a_tier_that_goes_in_a_child_is_let_go_of_without_a_word(tmp_path: Path) -> None:
    memory = Memory()
    tiers = [open_tier(memory, tmp_path)]
    store(tiers[0], memory, [1])

    def calls() -> None:
        tiers.clear()
        gc.collect()

    for _ in range(20):
        assert in_child(calls) == 0
    tiers[0].submit_load(2, "r", [key(1)], [4])
    assert wait(tiers[0])[0][2] == [True]
    tiers[0].shutdown()


SCRIPT = """
import os, sys
from pathlib import Path
from blocks import Memory, open_tier, store
memory = Memory()
tier = open_tier(memory, Path(sys.argv[1]))
store(tier, memory, [1])
for n in range(20):
    pid = os.fork()
    if pid == 0:
        if n % 2:
            tier.shutdown()
        sys.exit(0)
    if os.waitpid(pid, 0)[1]:
        sys.exit(f"child {n} ended badly")
tier.shutdown()
"""


def test_a_child_that_leaves_in_order_leaves_in_order(tmp_path: Path) -> None:
    """Once it printed a panic as the interpreter ended, and now and then died of SIGSEGV in `pthread_detach`."""
    path = os.pathsep.join(p for p in sys.path if p)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line]
    # half of the children were asked for something
    assert len(lines) == 10 and all("was forked from" in line for line in lines), ran.stderr
