"""What the driver of vLLM's manager sees and counts: tiers that do one thing wrong are told from one that does none.

Its tiers are dictionaries (``memory_tiers.py``), so counts are exact. Runs with every vLLM from 0.30 on.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm_driver import Driver, NeverEnds, State, WrongBytes, lookups  # noqa: E402


@pytest.fixture
def drive(request: pytest.FixtureRequest) -> Iterator[Callable[..., Driver]]:
    """Starts drivers over a tier of ``memory_tiers``, closed in the end; all of a test share their blocks."""
    running: list[Driver] = []

    def make(tier: str = "MemoryTier", **shape: Any) -> Driver:
        stanza = {"type": tier, "module_path": "memory_tiers", "store": request.node.nodeid}
        running.append(Driver([stanza], **shape))
        return running[-1]

    yield make
    for d in running:
        d.close()


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("size", [{}, {"block_bytes": 5000}, {"block_bytes": 4096, "blocks_per_chunk": 4}])
def test_counts_are_those_of_the_calls(drive, groups, size):
    d = drive(slots=256, groups=groups, **size)
    first = d.ask(d.prompt(40))
    assert (first.hits, first.waited, first.state) == (0, 0, State.ENDED)
    d.forget()
    again = d.ask(d.prompt(40))
    assert (again.hits, again.refused) == (40, 0)
    (meter,) = d.meters
    # the first lookup of the first prompt ended its search; later ones were answered by the primary
    assert meter.lookups == {"MISS": 1, "HIT": 40 * groups}
    assert meter.calls["lookup"].count == 1 + 40 * groups
    assert (meter.calls["submit_store"].count, meter.calls["on_request_finished"].count) == (1, 2)
    assert (meter.stored_blocks, meter.loaded_blocks, meter.used_blocks) == (40 * groups, 40 * groups, 40 * groups)
    assert (meter.wasted_blocks, meter.failed_blocks) == (0, 0)
    assert meter.loads_of == {again.name: 40 * groups}
    # compared when the copy began and when it ended
    assert d.accelerator.checked == 2 * 40 * groups
    assert sum(step["lookup"] for step in meter.history) == meter.calls["lookup"].count
    assert meter.calls["lookup"].total_s >= meter.calls["lookup"].worst_s > 0
    assert set(d.tiers[0].finished.values()) == {1}


def test_a_flipped_bit_is_found(drive):
    d = drive("FlippingTier")
    d.ask(d.prompt(8))
    d.forget()
    with pytest.raises(WrongBytes, match="load for request-2: slot .* in 1 of 16384 bytes, the first at 77"):
        d.ask(d.prompt(8))


def test_dropped_stores_show_as_missing_hits(drive):
    d = drive("DroppingTier")
    d.ask(d.prompt(8))
    assert d.meters[0].stored_blocks == 8, "the tier said so"
    d.forget()
    assert d.ask(d.prompt(8)).hits < 8


@pytest.mark.parametrize("tier", ["HastyTier", "LateTier"])
def test_bytes_that_come_after_they_were_promised_are_found(drive, tier):
    # the copy takes a while, so that what a slot loses meanwhile shows
    d = drive(tier, load_steps=3)
    d.ask(d.prompt(8))
    d.forget()
    with pytest.raises(WrongBytes):
        d.ask(d.prompt(8))


def test_a_store_that_reads_too_early_is_found_when_its_block_comes_back(drive):
    d = drive()
    early = d.prompt(8)
    request = d.add(early)
    d.step()
    (copy,) = d.copies.under_way
    # what the slots hold while the copy is under way
    for key, slot in zip(copy.keys, copy.slots, strict=True):
        d.tiers[0].write(bytes(key), slot)
    d.tiers[0].write = lambda key, slot: None
    d.run()
    d.settle()
    assert request.ended
    d.forget()
    with pytest.raises(WrongBytes, match="a store into it had not ended"):
        d.ask(early)


def test_a_lookup_that_is_never_answered_ends_the_test_and_says_whose(drive):
    d = drive("EvasiveTier")
    with pytest.raises(NeverEnds) as failure:
        d.ask_all([d.prompt(3), d.prompt(5, "q")], steps=20)
    text = str(failure.value)
    assert "a request did not end in 20 steps" in text and "2 requests left" in text
    assert "request-2: waiting, 5 chunks, put off 20 times, no lookup answered; 0 blocks loaded for it" in text
    assert f"{20 * 8} RETRY" in text


def test_a_load_that_is_never_reported_ends_the_test(drive):
    d = drive("MuteTier")
    d.ask(d.prompt(4))
    d.forget()
    with pytest.raises(NeverEnds, match="a request did not end in 30 steps"):
        d.ask(d.prompt(4), steps=30)
    # what was asked for is under way, whoever still wants it
    for request in list(d.waiting):
        d.abort(request)
    with pytest.raises(NeverEnds, match="work did not end in 10 steps"):
        d.settle(10)


def test_what_a_tier_raises_comes_through(drive):
    d = drive("RaisingTier")
    d.ask(d.prompt(4))
    d.forget()
    with pytest.raises(RuntimeError, match="no disk today"):
        d.ask(d.prompt(4))


def test_every_step_looks_up_all_that_waits_in_order_of_arrival(drive):
    d = drive("MemoryTier", slots=256)
    prompts = [d.prompt(4, f"p{i}") for i in range(6)]
    d.ask_all(prompts)
    d.forget()
    d.tiers[0].asked.clear()
    requests = [d.add(p) for p in prompts]
    d.step()
    asked = d.tiers[0].asked
    assert list(dict.fromkeys(name for name, _ in asked)) == [r.name for r in requests]
    assert [key for _, key in asked] == [bytes(k) for p in prompts for k in p]
    # one job per request, submitted when all had been asked
    assert d.meters[0].history[-2]["submit_load"] == len(requests)
    assert all(r.waited == 1 for r in requests)
    d.run()
    assert [r.hits for r in requests] == [4] * 6


def test_a_step_takes_no_more_requests_than_it_has_room_for(drive):
    d = drive(slots=256, max_running=2, chunks_per_step=4)
    requests = [d.add(d.prompt(10, f"p{i}")) for i in range(5)]
    d.step()
    # four chunks for the first, none left for the others
    assert [r.state for r in requests] == [State.RUNNING] + [State.WAITING] * 4
    assert (requests[0].computed, d.meters[0].calls["lookup"].count) == (4, 1)
    most = 0
    while d.waiting or d.running:
        d.step()
        most = max(most, len(d.running))
    assert most <= 2 and all(r.ended for r in requests)
    d.settle()
    assert d.meters[0].stored_blocks == 50


def test_a_full_accelerator_holds_the_rest_back(drive):
    d = drive(slots=256, accelerator_chunks=16, chunks_per_step=2)
    requests = [d.add(d.prompt(8, f"p{i}")) for i in range(4)]
    while not requests[-1].ended:
        d.step()
        assert sum(r.chunks for r in d.running) <= 16


def test_a_prompt_longer_than_the_primary_is_loaded_in_vain_without_end(drive):
    """What vLLM's manager does with a tier that has no rule against it: a bound on steps is what ends it."""
    keys = lookups.prompt(40)
    drive(slots=128).ask(keys)
    d = drive(slots=32)
    with pytest.raises(NeverEnds) as failure:
        d.ask(keys, steps=200)
    (meter,) = d.meters
    assert meter.loaded_blocks > 10 * 40 and meter.used_blocks == 0
    assert meter.wasted_blocks == meter.loaded_blocks - 40, "each but the last load of each block"
    assert "32 slots" in str(failure.value)
    loads = meter.loads_of["request-1"]
    assert f"request-1: waiting, 40 chunks, put off 200 times, no lookup answered; {loads} blocks" in str(failure.value)


def test_windows_are_loaded_alone(drive):
    d = drive(slots=256, windows=(None, 4, 2))
    d.ask(d.prompt(20))
    d.forget()
    assert d.ask(d.prompt(20)).hits == 20
    # looked up and loaded: all of the first group, the last four and the last two of the others
    assert d.meters[0].lookups["HIT"] == d.meters[0].used_blocks == 20 + 4 + 2


def test_a_window_shortens_what_is_loaded_to_where_it_is_whole(drive):
    d = drive(slots=256, windows=(None, 4))
    keys = d.prompt(20)
    d.ask(keys)
    d.forget()
    # chunk 17 of the second group is gone: the last whole window ends before it
    gone = next(k for k in d.tiers[0].blocks if k[:-4] == bytes(keys[17])[:-4] and k[-1] == 1)
    del d.tiers[0].blocks[gone]
    assert d.ask(keys).hits == 17


def test_requests_that_end_early_leave_nothing_behind(drive):
    d = drive(slots=32)
    keys = d.prompt(12)
    d.ask(keys)
    d.forget()
    for steps in range(4):
        request = d.add(keys)
        for _ in range(steps):
            d.step()
        d.abort(request)
        d.settle()
        assert request.aborted or request.ended
    assert d.tiers[0].finished == {f"request-{i}": 1 for i in range(1, 6)}
    assert d.ask(keys).hits == 12


def test_a_reset_with_copies_under_way_forgets_them(drive):
    d = drive(slots=64)
    d.add(d.prompt(16))
    d.step()
    assert d.copies.under_way
    d.forget()
    assert not d.copies.under_way
    d.run()
    d.settle()
    assert d.meters[0].calls["submit_store"].count == 0, "what was being copied never got there"
    assert d.ask(d.prompt(16)).hits == 0
    assert d.meters[0].stored_blocks == 16


def test_a_second_lifetime_finds_what_the_first_stored(drive):
    keys = lookups.prompt(24)
    first = drive()
    first.ask(keys)
    first.close()
    assert drive().ask(keys).hits == 24


def test_prompts_share_leading_keys_and_nothing_else():
    a, b = lookups.prompt(6, "a", shared=2), lookups.prompt(6, "b", shared=2)
    assert a[:2] == b[:2] and not set(a[2:]) & set(b[2:])
    assert lookups.prompt(6, "a", shared=2) == a and lookups.prompt(3, "a", shared=2) == a[:3]
