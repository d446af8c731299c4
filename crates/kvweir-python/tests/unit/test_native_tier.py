"""The native tier as Python sees it: jobs, errors, events, end."""

import os
import threading
import time

import pytest
from blocks import HIT, MISS, RETRY, Memory, Request, content, key, open_tier, store, wait

import kvweir
from kvweir import BusyError, ClosedError, InvalidError, KvweirError


@pytest.fixture
def memory():
    return Memory()


def test_each_job_is_reported_once_with_one_result_a_block(tmp_path, memory):
    tier = open_tier(memory, tmp_path)
    assert store(tier, memory, [1, 2, 3])[:4] == (1, False, [True, True, True], 0)
    assert tier.poll() == []
    assert not tier.has_pending_work()
    tier.submit_load(2, "r", [key(1), key(99), key(3)], [4, 5, 6])
    ended = wait(tier)
    assert [e[:3] for e in ended] == [(2, True, [True, False, True])]
    assert memory.read(6) == content(3, memory.row)
    tier.shutdown()


def test_blocks_survive_a_restart(tmp_path, memory):
    tier = open_tier(memory, tmp_path)
    store(tier, memory, [1, 2])
    tier.shutdown()
    tier = open_tier(memory, tmp_path)
    assert tier.stats()["recovered_blocks"] == 2
    assert [tier.lookup(key(n), Request("r")) for n in (1, 2, 3)] == [HIT, HIT, MISS]
    tier.shutdown()


def test_a_hit_pins_for_the_request_and_its_end_unpins(tmp_path, memory):
    tier = open_tier(memory, tmp_path)
    store(tier, memory, [1, 2])
    for _ in range(3):
        assert tier.lookup(key(1), Request("a")) == HIT
    assert tier.lookup(key(1), Request("b")) == HIT
    assert tier.stats()["pinned_blocks"] == 1
    tier.finish("a", [])
    assert tier.stats()["pinned_blocks"] == 1
    tier.finish("b", [])
    assert tier.stats()["pinned_blocks"] == 0
    tier.shutdown()


def test_an_unbounded_directory_is_probed_once_and_the_answer_kept(tmp_path, memory):
    tier = open_tier(memory, tmp_path, max_bytes=None, miss_ttl_s=60.0)
    assert tier.lookup(key(1), Request("r")) == RETRY
    end = time.monotonic() + 10
    while (answer := tier.lookup(key(1), Request("r"))) == RETRY and time.monotonic() < end:
        time.sleep(0.001)
    assert answer == MISS
    assert {tier.lookup(key(1), Request("s")) for _ in range(50)} == {MISS}
    tier.shutdown()


@pytest.mark.parametrize("bad", [b"", b"x" * 1000])
def test_a_key_of_a_wrong_size_is_refused(tmp_path, memory, bad):
    tier = open_tier(memory, tmp_path)
    assert tier.lookup(bad, Request("r")) == MISS
    tier.finish("r", [bad])
    with pytest.raises(InvalidError):
        tier.submit_store(1, "r", [bad], [0])
    with pytest.raises(InvalidError):
        tier.submit_load(1, "r", [bad], [0])
    assert tier.poll() == []
    tier.shutdown()


def test_a_row_that_does_not_exist_fails_its_job_alone(tmp_path, memory):
    tier = open_tier(memory, tmp_path)
    tier.submit_store(1, "r", [key(1)], [memory.rows])
    assert wait(tier)[0][:3] == (1, False, [False])
    tier.submit_load(2, "r", [key(1)], [1 << 31])
    assert wait(tier)[0][:3] == (2, True, [False])
    assert store(tier, memory, [1], job=3)[2] == [True]
    tier.shutdown()


def test_keys_and_rows_must_be_as_many(tmp_path, memory):
    tier = open_tier(memory, tmp_path)
    with pytest.raises(ValueError, match="as many"):
        tier.submit_store(1, "r", [key(1)], [0, 1])
    tier.shutdown()


def test_a_root_in_use_with_another_bound_names_the_holder(tmp_path, memory):
    tier = open_tier(memory, tmp_path)
    with pytest.raises(BusyError, match=str(os.getpid())):
        open_tier(Memory(), tmp_path, max_bytes=3 << 20)
    open_tier(Memory(), tmp_path).shutdown()
    tier.shutdown()
    open_tier(Memory(), tmp_path, max_bytes=3 << 20).shutdown()


@pytest.mark.parametrize(
    "setting", [{"max_bytes": 1}, {"policy": "fifo"}, {"locality": "MOON"}]
)
def test_a_bad_setting_is_invalid(tmp_path, memory, setting):
    with pytest.raises(InvalidError):
        open_tier(memory, tmp_path, **setting)


@pytest.mark.parametrize("setting", [{"pin_ttl_s": -1.0}, {"miss_ttl_s": float("nan")}])
def test_a_time_that_is_none_is_refused_by_name(tmp_path, memory, setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        open_tier(memory, tmp_path, **setting)


def test_a_closed_tier_says_so_and_answers_miss(tmp_path, memory):
    tier = open_tier(memory, tmp_path)
    store(tier, memory, [1])
    tier.shutdown()
    assert tier.lookup(key(1), Request("r")) == MISS
    assert tier.poll() == [] and not tier.has_pending_work() and tier.take_events() == []
    for call in (
        lambda: tier.submit_store(1, "r", [key(1)], [0]),
        lambda: tier.submit_load(1, "r", [key(1)], [0]),
        tier.namespace_dir,
    ):
        with pytest.raises(ClosedError):
            call()
    # what an engine still calls on its way down never raises into it
    tier.touch("r", [key(1)])
    tier.finish("r", [key(1)])
    tier.drain()
    assert tier.shutdown() == []
    assert tier.stats()["stored_blocks"] == 1


def test_every_error_is_below_one_class():
    for name in ("Busy", "Full", "Unavailable", "Corrupt", "Invalid", "Closed"):
        assert issubclass(getattr(kvweir, f"{name}Error"), KvweirError)


def test_shutdown_reports_what_it_cancelled(tmp_path):
    memory = Memory(64, 1 << 20)
    tier = open_tier(memory, tmp_path, store_threads=1, load_threads=1, max_bytes=1 << 30)
    for job in range(64):
        tier.submit_store(job, "w", [key(job)], [job])
    ended = tier.poll() + tier.shutdown()
    assert sorted(e[0] for e in ended) == list(range(64))


def test_events_tell_what_came_and_what_went(tmp_path, memory):
    tier = open_tier(memory, tmp_path, events=True, max_bytes=512 << 10)
    store(tier, memory, list(range(8)))
    ((removed, keys),) = tier.take_events()
    assert not removed and sorted(keys) == sorted(key(n) for n in range(8))
    for n in range(8, 80):
        store(tier, memory, [n], job=n)
    here: set[bytes] = {key(n) for n in range(8)}
    for removed, keys in tier.take_events():
        for k in keys:
            (here.discard if removed else here.add)(k)  # a removal may come alone
    assert here == {key(n) for n in range(80) if tier.lookup(key(n), Request("r")) == HIT}
    assert 0 < len(here) < 80
    tier.shutdown()


def test_other_threads_run_while_a_drain_waits(tmp_path):
    memory = Memory(64, 1 << 20)
    tier = open_tier(memory, tmp_path, store_threads=1, load_threads=1, max_bytes=1 << 30)
    for slot in range(64):
        memory.fill(slot, content(slot, 1 << 20))
    waiting, ticks = threading.Event(), 0

    def tick() -> None:
        nonlocal ticks
        waiting.wait()
        while waiting.is_set():
            ticks += 1
            time.sleep(0.0005)

    other = threading.Thread(target=tick)
    other.start()
    for job in range(64):
        tier.submit_store(job, "w", [key(job)], [job])
    start = time.monotonic()
    waiting.set()
    tier.drain()
    took = time.monotonic() - start
    seen = ticks
    waiting.clear()
    other.join()
    tier.shutdown()
    if took < 0.02:
        pytest.skip(f"the device drained 64 MiB in {took * 1e3:.1f} ms: too fast to see")
    assert seen >= 3


def test_a_lookup_does_not_wait_for_a_drain_of_another_tier(tmp_path, memory):
    tiers = [open_tier(Memory(), tmp_path / str(i)) for i in range(2)]
    threads = [threading.Thread(target=t.drain) for t in tiers]
    for t in threads:
        t.start()
    assert tiers[0].lookup(key(1), Request("r")) == MISS
    for t in threads:
        t.join()
    for t in tiers:
        t.shutdown()


ODD_NAMES = ["\ud800", "caf\udce9", "a\ud800b", "", "\0", "x" * 10**6, None, 3, b"r", object()]


@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda n: ascii(n)[:12])
def test_the_name_of_a_request_may_be_anything(tmp_path, memory, name):
    """A lone surrogate, which a client may send, was a UnicodeEncodeError in vLLM's scheduler."""
    tier = open_tier(memory, tmp_path)
    store(tier, memory, [1, 2])
    asked = Request(name)
    assert [tier.lookup(key(n), asked) for n in (1, 3)] == [HIT, MISS]
    assert tier.lookup(key(1), Request("other")) == HIT
    tier.finish("other", [])
    assert tier.stats()["pinned_blocks"] == 1, "one request's end is not another's"
    tier.submit_store(2, name, [key(4)], [5])
    assert wait(tier)[0][2] == [True]
    tier.submit_load(3, name, [key(1)], [6])
    assert wait(tier)[0][2] == [True]
    tier.touch(name, [key(1)])
    assert tier.lookup(key(2), asked) == HIT
    tier.finish(name, [key(1)])
    assert tier.stats()["pinned_blocks"] == 0
    tier.shutdown()


def test_a_lookup_never_raises(tmp_path, memory):
    tier = open_tier(memory, tmp_path)
    store(tier, memory, [1])
    for odd in (None, 3, "x", "\ud800", b"", b"k" * 5000, [], object()):
        assert tier.lookup(odd, Request("r")) == MISS
        assert tier.lookup(key(1), odd) == MISS
    assert tier.lookup(key(1), Request("r")) == HIT
    tier.shutdown()
