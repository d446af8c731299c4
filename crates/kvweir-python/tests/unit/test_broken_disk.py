"""A disk that hangs or may only be read, as the engine in front of the tier sees it."""

import time
from pathlib import Path

import pytest
from blocks import HIT, MISS, RETRY, Memory, Request, content, key, open_tier, store, wait
from unanswered import opening_waits

from kvweir import InvalidError


@pytest.fixture
def memory():
    return Memory()


def until(done, seconds=20.0):
    """Waits until ``done`` says so."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.001)


def answer(tier, n):
    """The answer once it is known."""
    found = []
    until(lambda: found.append(tier.lookup(key(n), Request("r"))) or found[-1] != RETRY)
    tier.finish("r", [])
    return found[-1]


def block_file(root, n):
    """The file of block ``n``."""
    return next(Path(root).rglob(f"{key(n)[:-4].hex()}.bin"))


def test_a_load_that_hangs_is_reported_at_its_deadline_and_leaves_the_row_alone(tmp_path, memory):
    tier = open_tier(memory, tmp_path, io_timeout_s=0.3, bounce="always")
    store(tier, memory, [1, 2])
    file = block_file(tmp_path, 1)
    with opening_waits(file):
        assert tier.lookup(key(1), Request("r")) == HIT
        began = time.monotonic()
        tier.submit_load(2, "r", [key(1)], [5])
        assert wait(tier)[0][:3] == (2, True, [False])
        assert 0.25 < time.monotonic() - began < 3
        assert not tier.has_pending_work(), "the engine would wait for it"
        assert tier.lookup(key(2), Request("r")) == MISS
        stats = tier.stats()
        assert (stats["breaker_state"], stats["jobs_timed_out"], stats["hung_operations"]) == (2, 1, 1)
        # the row is in new use
        memory.fill(5, content(9, memory.row))
    until(lambda: tier.stats()["hung_operations"] == 0)
    assert memory.read(5) == content(9, memory.row)
    until(lambda: (tier.poll(), tier.stats()["breaker_state"])[1] == 0)
    assert tier.lookup(key(2), Request("r")) == HIT
    tier.finish("r", [])
    tier.shutdown()


def test_a_read_only_tier_serves_what_is_there_and_refuses_stores_as_no_fault(tmp_path, memory):
    owner = open_tier(memory, tmp_path)
    store(owner, memory, [1, 2])
    # beside the owner, whose lock it does not need
    tier = open_tier(memory, tmp_path, read_only=True)
    assert [answer(tier, n) for n in (1, 2, 3)] == [HIT, HIT, MISS]
    tier.submit_load(2, "r", [key(1)], [6])
    assert wait(tier)[0][:3] == (2, True, [True])
    assert memory.read(6) == content(1, memory.row)
    assert store(tier, memory, [3], job=3)[:4] == (3, False, [False], 0)
    assert tier.stats()["refused_blocks"]["read_only"] == 1
    tier.shutdown()
    owner.shutdown()


def test_a_word_that_is_no_way_to_bounce_is_refused(tmp_path, memory):
    with pytest.raises(InvalidError, match="auto, always, never"):
        open_tier(memory, tmp_path, bounce="maybe")
    with pytest.raises(ValueError, match="io_timeout_s"):
        open_tier(memory, tmp_path, io_timeout_s=-1.0)
