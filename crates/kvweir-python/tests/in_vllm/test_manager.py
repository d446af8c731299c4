"""What an engine's life brings to kvweir's manager, over its own tier and over others' tiers: prefixes longer than the
primary, many that wait, clients that go, resets, files that are broken, tiers that raise or lie or serve, and settings
that are wrong. Every loaded byte is compared by the driver, and nothing may stay held.
"""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.v1.kv_offload import base  # noqa: E402
from vllm_driver import Driver, NeverEnds, lookups, prompt, versions  # noqa: E402
from vllm_driver.versions import LATE_ORDER  # noqa: E402

import kvweir  # noqa: E402

OURS = "kvweir.vllm:KvweirOffloadingSpec"
HIT, MISS, PENDING = base.LookupResult.HIT, base.LookupResult.MISS, base.LookupResult.HIT_PENDING
SHAPES: dict[str, dict[str, Any]] = {"one group": {}, "three groups": {"groups": 3}, "a window": {"windows": (None, 4)}}
FLUSHES = hasattr(base.OffloadingManager, "on_reset_flushed")  # 0.33


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> dict[str, Any]:
    """KV groups."""
    return SHAPES[request.param]


@pytest.fixture
def ours(tmp_path: Path) -> dict[str, Any]:
    """kvweir's tier."""
    return own(tmp_path)


def own(root: Path, **more: Any) -> dict[str, Any]:
    """kvweir's tier under ``root``."""
    return {"type": "KvweirFsTier", "module_path": "kvweir.vllm", "root_dir": str(root), "max_bytes": "1GiB", **more}


@pytest.fixture(params=["kvweir", "hosted", "stock fs"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """A tier of ours, in Python, and vLLM's own in Python with threads."""
    return {
        "kvweir": own(tmp_path),
        "hosted": {"type": "MemoryTier", "module_path": "memory_tiers", "store": str(tmp_path)},
        "stock fs": {"type": "fs", "root_dir": str(tmp_path)},
    }[request.param]


def hosted(store: object, kind: str = "MemoryTier", module: str = "odd_tiers", **more: Any) -> dict[str, Any]:
    """A tier in Python."""
    if kind == "MemoryTier":
        module = "memory_tiers"
    return {"type": kind, "module_path": module, "store": str(store), **more}


@contextlib.contextmanager
def drive(*tiers: dict[str, Any], settle: bool = True, **shape: Any) -> Iterator[Driver]:
    """An engine; when all is done nothing is held in it."""
    shape = {"block_bytes": 4096, "metered": False, "spec": OURS, **shape}
    with Driver(list(tiers), **shape) as d:
        yield d
        if settle:
            d.settle()
        nothing_is_held(d)


def nothing_is_held(d: Driver) -> None:
    """Not in the primary, nor in tiers of ours."""
    n = d.manager.numbers()
    assert (n["held_slots"], n["writing_slots"], n["referenced_slots"]) == (0, 0, 0), n
    for tier in d.tiers:
        if hasattr(tier, "_tier"):
            assert tier.stats()["pinned_blocks"] == 0


def loaded(d: Driver) -> int:
    """Blocks brought up so far."""
    return sum(t["loaded_blocks"] for t in d.manager.numbers()["tiers"])


def plans(d: Driver) -> bool:
    """Whether it can plan at once: before 0.33 vLLM tells no windows, and several groups come up block by block."""
    return FLUSHES or d.shape.groups == 1


def most_slots_of(d: Driver, hits: int) -> int:
    """Slots that may be filled for a hit: a group that was not told of and not seen yet counts as a whole."""
    return slots_of(d, hits) if plans(d) else hits * d.shape.groups


def slots_of(d: Driver, hits: int) -> int:
    """Slots that a hit takes."""
    return sum(hits if w is None else min(w, hits) for w in d.shape.windows)


# --- cold, warm, in the primary -----------------------------------------------------------------------------


def test_what_was_stored_is_hit_in_the_primary_and_below(tier, shape):
    keys = prompt(40)
    with drive(tier, slots=200, **shape) as d:
        assert d.ask(keys).hits == 0
        assert d.ask(keys).hits == 40
        assert loaded(d) == 0, "the primary had it"
        d.forget()
        asked = d.ask(keys)
        assert asked.hits == 40
        assert slots_of(d, 40) <= loaded(d) <= most_slots_of(d, 40)
        if tier["type"] == "MemoryTier":
            assert asked.waited == 1 + LATE_ORDER
    with drive(tier, slots=200, **shape) as d:
        assert d.ask(keys).hits == 40, "after a restart"


@pytest.mark.parametrize("here", [1, 5, 39])
def test_a_prefix_half_in_the_primary_and_half_below_is_one_hit(tier, shape, here):
    keys = prompt(40)
    with drive(tier, slots=300, **shape) as d:
        d.ask(keys)
        d.forget()
        assert d.ask(keys[:here]).hits == here
        assert d.ask(keys).hits == 40
        assert loaded(d) <= most_slots_of(d, 40) + most_slots_of(d, here)


def test_a_prefix_longer_than_the_primary_is_hit_as_far_as_it_fits_again_and_again(tier, shape):
    keys = prompt(200)
    with drive(tier, slots=700, **shape) as d:
        assert d.ask(keys).hits == 0
    with drive(tier, slots=64, chunks_per_step=16, **shape) as d:
        for n in range(6):
            asked = d.ask(keys, steps=600)
            assert slots_of(d, asked.hits) <= 64
            assert not plans(d) or slots_of(d, asked.hits) >= 32, asked.hits
            fresh = d.prompt(8, f"fresh {n}")
            d.ask(fresh, steps=600)
            d.forget()
            # stores went on
            assert d.ask(fresh, steps=600).hits == 8
        assert not plans(d) or d.manager.numbers()["cut_requests"] >= 6


@pytest.mark.parametrize("kind", ["kvweir", "hosted"])
def test_each_of_fifty_waiting_is_served_whole_with_no_block_loaded_twice(kind, shape, tmp_path, capsys):
    stanza = own(tmp_path / "ours") if kind == "kvweir" else hosted(tmp_path)
    with drive(stanza, slots=3200, **shape) as d:
        prompts = [d.prompt(16, f"p{i}") for i in range(50)]
        d.ask_all(prompts)
    needed = 50 * slots_of(d, 16)
    with drive(stanza, slots=needed // 4, **shape) as d:
        asked = d.ask_all(prompts, steps=2000)
        steps, brought = d.steps, loaded(d)
        if plans(d):
            assert [r.hits for r in asked] == [16] * 50
            assert needed <= brought <= 1.1 * needed
            assert d.manager.numbers()["held_back_requests"] > 0
        mine = sum(r.hits or 0 for r in asked)
    stock = hosted(tmp_path / "s") if kind == "hosted" else {"type": "fs", "root_dir": str(tmp_path / "stock")}
    with Driver([stock], slots=3200, block_bytes=4096, **shape) as d:
        d.ask_all(prompts)
    with Driver([stock], slots=needed // 4, block_bytes=4096, **shape) as d:
        requests = [d.add(p) for p in prompts]
        try:
            d.run(500)
            end = f"{d.steps} steps"
        except NeverEnds:
            end = f"not over after {d.steps} steps"
        hits = sum(r.hits or 0 for r in requests)
        with capsys.disabled():
            print(
                f"\n  {kind}, {shape or 'one group'}: {needed} blocks needed; kvweir's manager loads {brought}, "
                f"{mine} of 800 chunks hit, {steps} steps; vLLM's loads {d.meters[0].loaded_blocks}, {hits} hit, {end}"
            )


def test_what_waiting_requests_share_is_loaded_once(tier, shape):
    with drive(tier, slots=800, **shape) as d:
        prompts = [d.prompt(28, f"p{i}", shared=24) for i in range(20)]
        d.ask_all(prompts)
        d.forget()
        before = loaded(d)
        assert [r.hits for r in d.ask_all(prompts)] == [28] * 20
        full = sum(w is None for w in d.shape.windows)
        once = (24 + 20 * 4) * full + 20 * sum(min(w, 4) for w in d.shape.windows if w)
        assert loaded(d) - before == once


# --- endings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [24, 300])
def test_a_client_that_goes_leaves_nothing_held(tier, shape, slots):
    keys = prompt(40)
    with drive(tier, slots=300, **shape) as d:
        d.ask(keys)
    with drive(tier, slots=slots, **shape) as d:
        for steps in [0, 1, 1, 2, 3, 4]:
            both = [d.add(keys), d.add(keys[:30])]
            for _ in range(steps):
                d.step()
            for request in both:
                d.abort(request)
            d.settle()
            nothing_is_held(d)
        hits = d.ask(keys).hits
        if slots == 300:
            assert hits == 40
        elif plans(d):
            # the clients' blocks may still be there
            assert slots_of(d, hits) >= 12


def test_one_of_two_that_goes_takes_nothing_from_the_other(tier, shape):
    keys = prompt(40)
    with drive(tier, slots=300, **shape) as d:
        d.ask(keys)
        for steps in [0, 1, 2]:
            d.forget()
            first, second = d.add(keys), d.add(keys)
            for _ in range(steps):
                d.step()
            d.abort(first)
            d.run()
            assert second.hits == 40


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_reset_while_blocks_come_up_forgets_them_and_the_next_step_goes_on(tier, shape, steps):
    keys = prompt(40)
    with drive(tier, slots=300, **shape) as d:
        d.ask(keys)
        for _ in range(3):
            d.forget()
            request = d.add(keys)
            for _ in range(steps):
                d.step()
            d.forget(spoil=0x5A)
            d.run(500)
            assert request.ended
            d.settle()
        d.forget()
        assert d.ask(keys).hits == 40


def test_a_reset_as_this_version_of_vllm_makes_it_lets_stores_and_loads_go_on(tier):
    keys, fresh = prompt(20), prompt(20, "fresh")
    with drive(tier, slots=100) as d:
        d.ask(keys)
        with d.locked():
            d.copies.forget()
            d.manager.reset_cache()
            d.accelerator.spoil(0xA5)
            if FLUSHES:
                assert d.manager.prepare_store(fresh, base.ReqContext(req_id="early")) is None, "late copies may land"
                d.manager.on_reset_flushed()
        assert d.ask(keys).hits == 20
        assert d.ask(fresh).hits == 0
        assert d.ask(fresh).hits == 20
        assert d.refused_stores == 0


# --- what does not come -------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["cut", "another byte", "gone"])
@pytest.mark.parametrize("at", [0, 17])
def test_a_broken_file_makes_a_shorter_hit(ours, shape, broken, at):
    keys = prompt(40)
    with drive(ours, slots=300, **shape) as d:
        d.ask(keys)
        d.forget()
        path = Path(d.tiers[0].file_mapper.get_file_name(keys[at]))
        data = bytearray(path.read_bytes())
        match broken:
            case "cut":
                path.write_bytes(data[: len(data) // 2])
            case "another byte":
                data[len(data) // 3] ^= 1
                path.write_bytes(data)
            case "gone":
                path.unlink()
        asked = d.ask(keys, steps=50)
        assert asked.hits == at
        # computed anew, and stored anew
        d.forget()
        assert d.ask(keys, steps=50).hits == 40


# --- between steps ------------------------------------------------------------------------------------------


class ByHand:
    """One request that asks from any chunk on, as when the accelerator has some of it."""

    def __init__(self, d: Driver, name: str, keys: list[Any], load_from: Any = None) -> None:
        more = {} if load_from is None else {"load_tier_filter": load_from}
        self.d, self.context = d, base.ReqContext(req_id=name, **more)
        self.groups: list[list[Any]] = [[] for _ in d.shape.windows]
        self.grow(keys)
        d.manager.on_new_request(self.context)

    def grow(self, keys: list[Any]) -> None:
        """More keys."""
        hashes = [base.get_offload_block_hash(k) for k in keys]
        for g, of_group in enumerate(self.groups):
            for h in hashes:
                of_group.append(base.make_offload_key(h, g))
                versions.tell_position(self.context, of_group[-1], len(of_group) * 16)

    def ask(self, start: int = 0) -> int | None:
        """One step's lookups."""
        keys = [of_group[start:] for of_group in self.groups]
        found = lookups.loadable(lambda k: self.d.manager.lookup(k, self.context), keys, self.d.shape.windows)
        if versions.TOUCHES:
            for of_group in self.groups:
                self.d.manager.touch(of_group, self.context)
        return found

    def step(self, *new: str) -> None:
        """The step is over."""
        self.d.manager.on_schedule_end(base.ScheduleEndContext(new_req_ids=new, preempted_req_ids=()))
        time.sleep(0.001)

    def wait(self, start: int = 0, steps: int = 300) -> int:
        """Asks until there is an answer."""
        for _ in range(steps):
            found = self.ask(start)
            if found is not None:
                return found
            self.step()
        raise AssertionError(f"put off for {steps} steps")

    def load(self, start: int, found: int) -> None:
        """What was found, to the accelerator; every byte is compared."""
        needed = lookups.needed([g[start:] for g in self.groups], self.d.shape.windows, found)
        place = self.d.manager.prepare_load(needed, self.context)
        self.d.accelerator.check(needed, [int(i) for i in place.chunk_ids], self.context.req_id)
        self.d.manager.complete_load(needed, self.context)

    def finish(self) -> None:
        """Its end."""
        self.d.manager.on_request_finished(self.context)


def test_a_request_whose_prefix_on_the_accelerator_grows_and_shrinks_gets_what_is_left(tier, shape):
    keys = prompt(40)
    with drive(tier, slots=300, **shape) as d:
        d.ask(keys)
        for n, starts in enumerate([(0, 10), (10, 0), (20, 5, 30), (39, 0), (0, 39), (10, 10, 9, 10)]):
            d.forget()
            request = ByHand(d, f"moving {n}", keys)
            for start in starts[:-1]:
                if request.ask(start) is None:
                    request.step()
            last = starts[-1]
            assert request.wait(last) == 40 - last, starts
            request.load(last, 40 - last)
            request.step()
            request.finish()
            nothing_is_held(d)


def test_a_preempted_request_that_grew_gets_the_rest_too(tier, shape):
    keys = prompt(40)
    with drive(tier, slots=300, **shape) as d:
        d.ask(keys)
        d.forget()
        request = ByHand(d, "grown", keys[:10])
        assert request.wait() == 10
        request.load(0, 10)
        request.step("grown")
        # it runs, is preempted, and has more keys by then, all of them below
        request.grow(keys[10:])
        assert request.wait() == 40
        request.load(0, 40)
        request.finish()


def test_a_key_between_chunks_is_brought_up_too(tier):
    """vLLM asks for the tail of a prompt that fills no chunk under a key of its own, told while it asks."""
    if LATE_ORDER:
        pytest.skip("0.30 has no such keys")
    keys, (tail,) = prompt(10), prompt(1, "tail")
    with drive(tier, slots=100) as d:
        d.ask([*keys, tail])
        d.forget()
        request = ByHand(d, "tailed", keys)
        assert request.wait() == 10
        versions.tell_position(request.context, tail, 10 * 16 + 5)
        answers = []
        for _ in range(100):
            assert request.ask() == 10
            answers.append(d.manager.lookup(tail, request.context))
            if answers[-1] is HIT:
                break
            request.step()
        assert answers[-1] is HIT
        request.finish()


# --- which tier ---------------------------------------------------------------------------------------------


def test_a_request_loads_only_from_the_tiers_that_it_allows(tmp_path):
    with drive(own(tmp_path), slots=200) as d:
        keys = d.prompt(20)
        d.ask(keys)
        everything = base.TierFilter.ALL
        storage = base.TierFilter(matchers=(base.TierMatcher(medium=base.Medium.STORAGE),))
        cpu = base.TierFilter(matchers=(base.TierMatcher(medium=base.Medium.CPU),))
        nothing = base.TierFilter(matchers=())
        for n, (allowed, hits) in enumerate([(nothing, 0), (cpu, 0), (storage, 20), (everything, 20)]):
            d.forget()
            request = ByHand(d, f"r{n}", keys, allowed)
            assert request.wait() == hits
            request.finish()
            request.step()


def test_what_one_tier_lacks_another_brings(tmp_path, shape):
    keys = prompt(40)
    one, two = own(tmp_path / "one"), own(tmp_path / "two")
    with drive(one, slots=300, **shape) as d:
        d.ask(keys[:25])
    with drive(two, slots=300, **shape) as d:
        d.ask(keys)
    with drive(one, two, slots=300, **shape) as d:
        assert d.ask(keys).hits == 40
        n = d.manager.numbers()["tiers"]
        if not plans(d):
            assert n[0]["loaded_blocks"] >= 25
        elif d.shape.windows == (None, 4):
            assert [t["loaded_blocks"] for t in n] == [25, 15 + 4]
        else:
            assert [t["loaded_blocks"] for t in n] == [25 * d.shape.groups, 15 * d.shape.groups]


@pytest.mark.parametrize("pair", ["ours twice", "ours and stock fs", "stock fs and a hosted one", "hosted and ours"])
def test_two_tiers_both_get_what_is_stored(tmp_path, shape, pair):
    fs = {"type": "fs", "root_dir": str(tmp_path / "fs")}
    tiers = {
        "ours twice": [own(tmp_path / "a"), own(tmp_path / "b", layout="pack", type="KvweirTier")],
        "ours and stock fs": [own(tmp_path / "a"), fs],
        "stock fs and a hosted one": [fs, hosted(tmp_path)],
        "hosted and ours": [hosted(tmp_path), own(tmp_path / "a")],
    }[pair]
    keys = prompt(30)
    with drive(*tiers, slots=200, **shape) as d:
        d.ask(keys)
        stored = [t["stored_blocks"] for t in d.manager.numbers()["tiers"]]
        assert stored == [30 * d.shape.groups] * 2
        d.forget()
        assert d.ask(keys).hits == 30
    for alone in tiers:
        with drive(alone, slots=200, **shape) as d:
            assert d.ask(keys).hits == 30


def test_vllms_example_tier_is_asked_as_by_its_own_manager(shape):
    with drive({"type": "example"}, slots=300, **shape) as d:
        # it keeps no bytes
        d.accelerator.check = lambda *_: None
        keys = d.prompt(40)
        assert (d.ask(keys).hits, d.ask(keys).hits) == (0, 40)
        d.forget()
        assert d.ask(keys).hits == 40
        assert d.tiers[0].get_num_chunks() == 40 * d.shape.groups


# --- tiers that raise, lie and serve ------------------------------------------------------------------------

CALLS = (
    "lookup,submit_store,submit_load,get_finished_jobs,has_pending_work,on_new_request,on_request_finished,"
    "drain_jobs,touch,on_schedule_end,serve_external_requests,take_events,get_stats"
)


@pytest.mark.parametrize("calls", [CALLS, *CALLS.split(",")])
def test_a_tier_that_raises_is_told_in_the_log_and_the_engine_goes_on(tmp_path, caplog, calls):
    tiers = [own(tmp_path), hosted(tmp_path, "RaisingTier", calls=calls)]
    keys = prompt(20)
    jobs_end = "get_finished_jobs" not in calls.split(",")
    shape = {"slots": 200, "metered": False, "block_bytes": 4096, "events": True}
    with Driver(tiers, spec=OURS, **shape) as d, caplog.at_level("ERROR"):
        raising = d.tiers[1]
        for _ in range(3):
            for hits in (None, 20):
                request = d.add(keys)
                d.run(200)
                assert hits in (None, request.hits)
                for _ in range(5):
                    d.step()
                d.busy()
                d.manager.touch(keys, request.context)
                d.take_events()
                d.manager._reporter._next = 0.0
                d.stats()
            if jobs_end or calls == CALLS:
                d.forget()
        assert raising.raised or calls in ("drain_jobs", "submit_load"), "it was asked"
    if raising.raised:
        assert any("no disk today" in r.getMessage() or r.exc_info for r in caplog.records)


@pytest.mark.parametrize("calls", ["serve_external_requests", "get_finished_jobs"])
def test_a_tier_that_raises_between_steps_does_not_fill_the_log(tmp_path, caplog, calls):
    if not FLUSHES:
        pytest.skip("before 0.33 no tier is polled between steps")
    stanza = hosted(tmp_path, "RaisingOffThreadTier", calls=calls)
    with Driver([stanza], spec=OURS, slots=20, metered=False, block_bytes=4096) as d, caplog.at_level("ERROR"):
        time.sleep(0.5)
        assert d.tiers[0].raised > 20
    assert 1 <= len([r for r in caplog.records if r.levelno >= logging.ERROR]) <= 4


@pytest.mark.parametrize(
    "lies", ["unknown", "no number", "twice", "unreadable", "keys of others", "keys that are none"]
)
def test_results_of_no_job_are_told_and_change_nothing(tmp_path, caplog, lies, shape):
    keys = prompt(20)
    with drive(hosted(tmp_path), slots=200, **shape) as d:
        d.ask(keys)
    with drive(hosted(tmp_path, "LyingTier", lies=lies), slots=200, **shape) as d, caplog.at_level("ERROR"):
        hits = d.ask(keys, steps=100).hits
        assert hits == (20 if lies in ("unknown", "no number", "twice") else 0)
        assert d.tiers[0].told
        assert d.ask(keys, steps=100).hits == 20, "computed, and in the primary"


def test_a_tier_is_asked_nothing_after_its_end(tmp_path):
    with Driver([hosted(tmp_path, "EndedTier")], spec=OURS, slots=64, metered=False, block_bytes=4096) as d:
        (tier,) = d.tiers
        d.add(d.prompt(8))
        while not tier.jobs:
            d.step()
    assert tier.over and tier.after == []


@pytest.mark.parametrize("kind", ["ServingTier", "ServingOffThreadTier"])
def test_a_tier_serves_others_from_the_primary_and_from_what_is_below(tmp_path, kind, shape):
    with drive(hosted(tmp_path / "h", kind), own(tmp_path / "own"), slots=200, **shape) as d:
        serving = d.tiers[0]
        keys, absent = d.prompt(20), d.prompt(5, "absent")
        d.ask(keys)
        wanted = [k for k in keys[:12]]
        for name, what, first in (
            ("peer 1", wanted, "HIT"),
            ("peer 2", absent, "MISS"),
            ("peer 3", [*wanted, absent[0]], None),
        ):
            serving.wanted.append((name, what))
            until = time.monotonic() + 10
            while serving.wanted and time.monotonic() < until:
                d.step()
            assert not serving.wanted
            if first:
                assert set(serving.answers[name][0]) == {first}
        assert serving.served.keys() == {bytes(k) for k in wanted}
        for key in wanted:
            assert serving.served[bytes(key)].tobytes() == d.accelerator.value(key).tobytes()
        # from below, brought up for it
        d.forget()
        serving.served.clear()
        serving.blocks.clear()
        serving.wanted.append(("peer 4", wanted))
        until = time.monotonic() + 10
        while serving.wanted and time.monotonic() < until:
            d.step()
        assert serving.served.keys() == {bytes(k) for k in wanted}
        assert serving.answers["peer 4"][0][0] == "HIT_PENDING"
        assert serving.errors == []
        assert not any(name.startswith("peer") for name in serving.finished), "it is not told of its own"
        if kind == "ServingOffThreadTier" and FLUSHES:
            assert "kvweir-tier-poll" in serving.threads


def test_a_tier_that_asks_for_what_is_not_there_gets_an_error_of_kvweir(tmp_path):
    with drive(hosted(tmp_path, "ServingTier"), slots=64) as d:
        d.ask(d.prompt(4))
        parent = d.manager._parents[0]
        context = base.ReqContext(req_id="peer")
        with d.locked():
            parent.on_new_request(context)
            with pytest.raises(kvweir.InvalidError):
                parent.create_store_job(d.prompt(3, "absent"), context)
            parent.on_request_finished(context)


# --- settings -----------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "policy": ({"eviction_policy": "mru"}, ["eviction_policy", "mru", "lru"]),
    "policy of no kind": ({"eviction_policy": 3}, ["eviction_policy", "3", "lru"]),
    "no share": ({"promote_share": 0}, ["promote_share", "0", "at most 1"]),
    "more than all": ({"promote_share": 1.5}, ["promote_share", "1.5", "at most 1"]),
    "a word": ({"promote_share": "x"}, ["promote_share", "x", "at most 1"]),
    "yes": ({"promote_share": True}, ["promote_share", "at most 1"]),
    "no number": ({"promote_share": float("nan")}, ["promote_share", "at most 1"]),
    "before now": ({"promote_wait_s": -1}, ["promote_wait_s", "-1"]),
    "a pause that is none": ({"tier_poll_interval_s": "x"}, ["x"]),
    "a policy in Python": ({"cache_policy_module_path": "here"}, ["cache_policy_module_path", "TieringOffloadingSpec"]),
    "a threshold": ({"store_threshold": 2}, ["store_threshold", "0 or 1"]),
    "two at once": ({"promote_share": 2, "eviction_policy": "mru"}, ["promote_share", "eviction_policy"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_setting_is_told_before_anything_starts(ours, what):
    extra, words = WRONG[what]
    with pytest.raises(Exception) as failure:
        Driver([ours], spec=OURS, extra=extra)
    text = str(failure.value)
    assert all(word in text for word in words), text
    assert len(text.splitlines()) <= 1 + len(extra), text
    assert not isinstance(failure.value, (AttributeError, KeyError, TypeError)), repr(failure.value)


def test_a_primary_of_no_slot_is_told(ours):
    with pytest.raises(Exception) as failure:
        Driver([ours], spec=OURS, extra={"cpu_bytes_to_use": 100})
    assert "cpu_bytes_to_use" in str(failure.value)


@pytest.mark.parametrize(
    ("stanza", "words"),
    [
        ({"type": "tape"}, ["tape"]),
        ({"type": "Missing", "module_path": "kvweir.vllm"}, ["Missing"]),
        ({"type": "KvweirFsTier", "module_path": "kvweir.nowhere", "root_dir": "/tmp"}, ["kvweir.nowhere"]),
        (own(Path("/tmp"), max_bytez=1), ["max_bytez"]),
        (own(Path("/tmp"), max_bytes="x"), ["max_bytes", "x"]),
    ],
)
def test_a_tier_that_cannot_be_had_is_told_and_those_before_it_end(tmp_path, stanza, words):
    first = own(tmp_path)
    with pytest.raises(Exception) as failure:
        Driver([first, stanza], spec=OURS)
    assert all(word in str(failure.value) for word in words), failure.value
    # the first let go of its root
    with drive(first, slots=20) as d:
        d.ask(d.prompt(4))


# --- calls out of order -------------------------------------------------------------------------------------


def test_calls_that_no_scheduler_makes_break_nothing(tier):
    keys, absent = prompt(8), prompt(3, "absent")
    with drive(tier, slots=64) as d:
        d.ask(keys)
        m = d.manager
        nobody = base.ReqContext(req_id="nobody")
        m.complete_store(absent, nobody)
        m.complete_store(absent, nobody, False)
        m.complete_load(absent, nobody)
        m.complete_load(keys, nobody)
        m.complete_load(keys, nobody)
        m.touch(absent, nobody)
        m.on_request_finished(nobody)
        m.on_request_finished(nobody)
        with pytest.raises(kvweir.KvweirError):
            m.prepare_load(absent, nobody)
        with pytest.raises(kvweir.KvweirError):
            m.prepare_load([*keys, *absent], nobody)
        assert m.lookup(b"", nobody) is MISS
        assert m.lookup("no key", nobody) is MISS
        assert m.lookup(keys[0], object()) in (MISS, HIT)
        somebody = base.ReqContext(req_id="somebody")
        m.on_new_request(somebody)
        m.on_new_request(somebody)
        place = m.prepare_load(keys, somebody)
        assert len(place.chunk_ids) == 8
        m.complete_load(keys, somebody)
        room = m.prepare_store(absent, somebody)
        m.complete_store(room.keys_to_store, nobody)
        assert m.lookup(absent[0], somebody) is not HIT, "his alone to complete"
        m.complete_store(room.keys_to_store, somebody, False)
        m.on_request_finished(somebody)
        d.step()
        d.settle()
        nothing_is_held(d)
        d.forget()
        assert d.ask(keys).hits == 8


def test_after_shutdown_everything_is_a_miss_and_a_second_shutdown_is_none(tier):
    with Driver([tier], spec=OURS, slots=64, metered=False, block_bytes=4096, events=True) as d:
        keys = d.prompt(8)
        d.ask(keys)
        m = d.manager
        d.close()
    context = base.ReqContext(req_id="late")
    m.shutdown()
    m.on_new_request(context)
    assert m.lookup(keys[0], context) is MISS
    assert m.prepare_store(keys, context) is None
    m.complete_store(keys, context)
    m.complete_load(keys, context)
    m.touch(keys, context)
    m.on_request_finished(context)
    m.on_schedule_end(base.ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))
    assert not m.has_pending_work()
    assert m.get_stats() is None
    m.reset_cache()
    with pytest.raises(kvweir.KvweirError):
        m.prepare_load(keys, context)


# --- numbers ------------------------------------------------------------------------------------------------


def take_numbers(d: Driver, counted: Any, shown: list[Any]) -> None:
    """What vLLM would export since the last call: counters are added up, gauges listed one after the other."""
    if hasattr(d.manager, "_reporter"):
        d.manager._reporter._next = 0.0
    with d.locked():
        stats = d.manager.get_stats()
    if stats is None:
        return
    kinds, data = stats.data["types"], stats.data["data"]
    for name, by_label in data.items():
        for label, value in by_label.items():
            if kinds[name] == "gauge":
                if not name.startswith("vllm:kvweir"):
                    shown.append((name, label, value))
            else:
                counted[name, label] += len(value) if kinds[name] == "histogram" else value


def test_numbers_have_vllms_names_and_say_what_vllms_do(tmp_path):
    told = []
    for spec in (None, OURS):
        counted: Counter[Any] = Counter()
        shown: list[Any] = []
        stanza = hosted(tmp_path / str(spec), module="scripted_tiers", kind="ScriptedTier", lag=2)
        with Driver([stanza], spec=spec, slots=200, metered=False, block_bytes=4096) as d:
            if not FLUSHES:
                pytest.skip("before 0.33 some of these numbers are others")
            for step, keys in enumerate([d.prompt(20), d.prompt(20), d.prompt(30, "q"), d.prompt(20)]):
                if step == 3:
                    d.forget()
                d.add(keys)
                while d.busy():
                    d.step()
                    take_numbers(d, counted, shown)
        told.append((counted, shown))
    (want, gauges), (got, ours) = told
    assert len(gauges) > 50
    assert sorted(set(gauges)) == sorted(set(ours))
    for name in {name for name, _, _ in gauges}:
        # in the same order; the moment of a step at which either looks is the same
        assert [g for g in ours if g[0] == name] == [g for g in gauges if g[0] == name]
    tier = "1:ScriptedTier"
    counters = "chunk_queries", "chunk_hits", "read_bytes", "write_bytes", "read_time", "write_time"
    for name in counters:
        label = f"vllm:kv_offload_tiering_{name}", (tier,)
        assert got[label] == want[label] > 0, name
    latency = "vllm:kv_offload_tiering_promotion_latency_seconds", (tier, "success")
    assert got[latency] == want[latency] == 1
    hits = "vllm:kv_offload_tiering_chunk_hits", ("0:primary",)
    # vLLM's counts a block once per request, when it is first found or not; kvweir's whenever it says so
    assert (want[hits], got[hits]) == (20, 40)
    missing = {name for name, _ in want} - {name for name, _ in got}
    assert missing <= {"vllm:kv_offload_tiering_lookup_sync_delay_seconds", "vllm:kv_offload_cpu_allocation_size"}
