"""Lookups answered ahead, and jobs whose blocks a worker makes: what a caller may not notice."""

import random
import time

import pytest
from blocks import HIT, MISS, Memory, key, open_tier, store, wait


class Prompt:
    """A request whose keys are known in order."""

    def __init__(self, name: str, keys: list[bytes]) -> None:
        self.req_id = name
        self.order = {k: i for i, k in enumerate(keys)}


def keys(n: int, first: int = 0) -> list[bytes]:
    """Keys of blocks in a row."""
    return [key(first + i) for i in range(n)]


@pytest.fixture
def memory() -> Memory:
    return Memory(rows=256)


@pytest.fixture
def tier(tmp_path, memory):
    """A tier that is told the order of a request's keys."""
    t = open_tier(memory, tmp_path, order="order")
    yield t
    t.shutdown()


def pins(tier) -> int:
    return tier.stats()["pinned_blocks"]


def settle(tier) -> None:
    """Waits for work that has no report."""
    end = time.monotonic() + 10
    while tier.has_pending_work() and time.monotonic() < end:
        time.sleep(0.001)


def load(tier, job: int, name: str, blocks: list[bytes], slots: list[int]) -> list[bool]:
    tier.submit_load(job, name, blocks, slots)
    return wait(tier)[0][2]


def test_every_key_in_order_is_a_hit_pinned_and_counted_once(tier, memory):
    store(tier, memory, list(range(200)))
    prompt = Prompt("r", keys(201))
    before = tier.stats()
    assert [tier.lookup(k, prompt) for k in keys(201)] == [HIT] * 200 + [MISS]
    now = tier.stats()
    assert now["pinned_blocks"] == 200
    assert now["lookup_hits"] - before["lookup_hits"] == 200
    assert now["lookup_misses"] - before["lookup_misses"] == 1
    tier.finish("r", prompt.order)
    assert pins(tier) == 0


def test_pins_of_keys_that_were_never_asked_for_end_with_the_request(tier, memory):
    store(tier, memory, list(range(200)))
    prompt = Prompt("r", keys(200))
    for k in keys(20):
        assert tier.lookup(k, prompt) == HIT
    assert 20 <= pins(tier) <= 20 + 64
    tier.finish("r", {})
    assert pins(tier) == 0


def test_pins_that_a_load_does_not_use_stay_with_the_request(tier, memory):
    store(tier, memory, list(range(40)))
    prompt = Prompt("r", keys(40))
    assert {tier.lookup(k, prompt) for k in keys(40)} == {HIT}
    assert load(tier, 2, "r", keys(10), list(range(100, 110))) == [True] * 10
    assert pins(tier) == 30
    tier.finish("r", {})
    assert pins(tier) == 0


def test_a_block_that_is_pinned_ahead_is_not_evicted(tmp_path, memory):
    tier = open_tier(memory, tmp_path, order="order", max_bytes=1 << 20)
    store(tier, memory, list(range(32)))
    prompt = Prompt("r", keys(32))
    assert [tier.lookup(k, prompt) for k in keys(4)] == [HIT] * 4
    ahead = pins(tier)
    for job in range(2, 30):
        store(tier, memory, list(range(100 * job, 100 * job + 8)), job=job)
    assert tier.stats()["evicted_blocks"]["capacity"] > 0
    assert pins(tier) == ahead
    assert [tier.lookup(k, prompt) for k in keys(ahead)] == [HIT] * ahead
    tier.finish("r", {})
    tier.shutdown()


def test_a_block_stored_after_it_was_missed_ahead_is_a_hit_when_asked_for(tier, memory):
    store(tier, memory, list(range(4)))
    prompt = Prompt("r", keys(8))
    assert [tier.lookup(k, prompt) for k in keys(4)] == [HIT] * 4
    store(tier, memory, list(range(4, 8)), job=2)
    assert [tier.lookup(k, prompt) for k in keys(4, 4)] == [HIT] * 4
    tier.finish("r", {})


def test_a_block_whose_load_failed_is_a_miss_although_it_was_pinned_ahead(tier, memory, tmp_path):
    store(tier, memory, list(range(16)))
    prompt = Prompt("r", keys(16))
    for k in keys(10):
        assert tier.lookup(k, prompt) == HIT
    assert pins(tier) == 16
    (bad,) = tmp_path.rglob(f"{key(12)[:-4].hex()}.bin")
    bad.unlink()
    assert load(tier, 2, "other", [key(12)], [100]) == [False]
    assert tier.lookup(key(12), prompt) == MISS
    tier.finish("r", {})


def test_keys_that_are_not_of_the_order_are_looked_up_alone(tier, memory):
    store(tier, memory, list(range(32)))
    prompt = Prompt("r", keys(8))
    asked = [key(20), key(0), key(21), key(1), key(40), key(2), key(3), key(22)]
    assert [tier.lookup(k, prompt) for k in asked] == [HIT, HIT, HIT, HIT, MISS, HIT, HIT, HIT]
    tier.finish("r", {})
    assert pins(tier) == 0


def test_keys_asked_for_from_the_end_pin_little_more_than_themselves(tier, memory):
    store(tier, memory, list(range(100)))
    prompt = Prompt("r", keys(100))
    for k in reversed(keys(100)[90:]):
        assert tier.lookup(k, prompt) == HIT
    assert pins(tier) == 10
    tier.finish("r", {})


def test_a_request_of_a_name_that_was_used_before_starts_anew(tier, memory):
    store(tier, memory, list(range(32)))
    for _ in range(3):
        prompt = Prompt("same", keys(32))
        for k in keys(16):
            assert tier.lookup(k, prompt) == HIT
        assert pins(tier) >= 16
        tier.finish("same", {})
        assert pins(tier) == 0


def test_the_pins_of_a_job_are_not_those_of_a_later_request_of_the_same_name(tier, memory):
    """A load that runs on after its request ended may not take the pin of a request with the same name."""
    store(tier, memory, list(range(64)))
    for round_ in range(50):
        first = Prompt("same", keys(64))
        for k in keys(64):
            assert tier.lookup(k, first) == HIT
        tier.submit_load(10 + round_, "same", keys(64), list(range(100, 164)))
        tier.finish("same", {})
        again = Prompt("same", keys(64))
        assert tier.lookup(key(63), again) == HIT
        wait(tier)
        assert pins(tier) == 1
        tier.finish("same", {})
        assert pins(tier) == 0


def test_an_order_that_changes_or_is_none_is_survived(tier, memory):
    store(tier, memory, list(range(32)))
    growing = Prompt("grows", keys(4))
    for i in range(32):
        assert tier.lookup(key(i), growing) == HIT
        growing.order[key(i + 4)] = i + 4
    for odd in (None, 3, [key(0)], {1: 2, key(0): 1, None: 3}, {key(0): "x", b"": 1, key(1): None}):
        prompt = Prompt("odd", [])
        prompt.order = odd
        assert [tier.lookup(key(i), prompt) for i in (0, 1, 2)] == [HIT] * 3
    tier.finish("grows", growing.order)
    tier.finish("odd", {key(0): "x", b"": 1, 3: 4})
    assert pins(tier) == 0


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_a_tier_that_is_told_no_order(tmp_path, seed):
    rnd = random.Random(seed)
    sides = [Memory(rows=64), Memory(rows=64)]
    tiers = [
        open_tier(m, tmp_path / str(i), order="order" if i else None) for i, m in enumerate(sides)
    ]
    for job in range(1, 80):
        first, n = rnd.randrange(60), rnd.randrange(1, 40)
        for t, m in zip(tiers, sides):
            store(t, m, list(range(first, first + 4)), job=job)
        prompt = Prompt(f"r{rnd.randrange(3)}", keys(n, rnd.randrange(40)))
        asked = [k for k in prompt.order if rnd.random() < 0.9]
        if rnd.random() < 0.2:
            asked.reverse()
        plain, ahead = ([t.lookup(k, prompt) for k in asked] for t in tiers)
        assert plain == ahead
        for t in tiers:
            t.finish(prompt.req_id, prompt.order)
            settle(t)
            assert pins(t) == 0
    a, b = (t.stats() for t in tiers)
    assert (a["lookup_hits"], a["lookup_misses"]) == (b["lookup_hits"], b["lookup_misses"])
    for t in tiers:
        t.shutdown()


def test_stores_are_done_in_the_order_of_positions(tmp_path, memory):
    tier = open_tier(memory, tmp_path, events=True, store_threads=1, load_threads=1)
    blocks = list(range(32))
    random.Random(1).shuffle(blocks)
    tier.submit_store(1, "r", [key(n) for n in blocks], blocks, {key(n): 16 * n for n in range(32)})
    wait(tier)
    ((removed, stored),) = tier.take_events()
    assert not removed and stored == keys(32)
    tier.shutdown()


def test_slots_are_taken_from_arrays_of_either_width(tier, memory):
    import array

    for job, code in enumerate("iq"):
        tier.submit_store(job, "r", keys(4, 10 * job), array.array(code, range(4)))
        assert wait(tier)[0][2] == [True] * 4
    with pytest.raises((OverflowError, ValueError)):
        tier.submit_store(9, "r", keys(1), array.array("q", [-1]))


def test_a_row_in_other_use_fails_its_job_alone_and_gives_the_pins_back(tier, memory):
    store(tier, memory, list(range(8)))
    prompt = Prompt("r", keys(8))
    for k in keys(8):
        assert tier.lookup(k, prompt) == HIT
    assert load(tier, 2, "r", keys(2), [5, 5]) == [False, False]
    assert pins(tier) == 8
    assert load(tier, 3, "r", keys(8), list(range(20, 28))) == [True] * 8
    tier.finish("r", {})
    assert pins(tier) == 0


def test_a_finished_requests_blocks_count_as_used_in_the_order_of_their_positions(tmp_path, memory):
    tier = open_tier(memory, tmp_path, max_bytes=1 << 20)
    hot = keys(8)
    store(tier, memory, list(range(8)))
    for job in range(2, 40):
        store(tier, memory, [100 * job + i for i in range(8)], job=job)
        tier.finish(f"r{job}", {k: i for i, k in reversed(list(enumerate(hot)))})
        settle(tier)
    assert tier.stats()["evicted_blocks"]["capacity"] > 0
    assert [tier.lookup(k, Prompt("q", [])) for k in hot] == [HIT] * 8
    tier.shutdown()
