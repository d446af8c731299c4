"""What ``KvweirFsTier`` promises, through vLLM's real manager."""

import os
import random
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm_driver.versions import LATE_ORDER  # noqa: E402

PREFIX = "vllm:kvweir_"
TRAILER = 4096


def on_disk(root) -> int:
    """What ``du`` counts below the root."""
    return sum(
        os.lstat(os.path.join(folder, name)).st_blocks * 512
        for folder, folders, files in os.walk(root)
        for name in [*folders, *files]
    )


def settle(engine) -> None:
    """Runs steps until no work is left."""
    engine.inner.run()
    engine.inner.settle()


def metrics(engine) -> dict[str, float]:
    """Name and labels -> number, as vLLM would export them now."""
    engine.tier._next_stats = 0.0
    with engine.inner.locked():
        stats = engine.mgr.get_stats()
    return stats.reduce()


def test_a_lookup_is_answered_at_once_in_a_bounded_directory(start, ours):
    e = start(ours())
    keys = e.keys(32)
    e.ask(keys)
    e.forget()
    e.ask(keys)
    answers = e.inner.meters[0].lookups
    assert answers["HIT"] == 32 and answers["MISS"] >= 1
    assert answers["RETRY"] <= LATE_ORDER


def test_an_unbounded_directory_is_probed_off_thread_and_the_answer_kept(start, ours):
    from vllm.v1.kv_offload.base import LookupResult, ReqContext

    e = start(ours(max_bytes=None, miss_ttl_s=60.0))
    (key,) = e.keys(1, "nobody has it")
    assert e.tier.lookup(key, ReqContext(req_id="a")) is LookupResult.RETRY
    end = time.monotonic() + 10
    while (answer := e.tier.lookup(key, ReqContext(req_id="a"))) is LookupResult.RETRY and time.monotonic() < end:
        time.sleep(0.001)
    assert answer is LookupResult.MISS
    for i in range(100):
        assert e.tier.lookup(key, ReqContext(req_id=f"b{i}")) is LookupResult.MISS


def test_an_unknown_setting_is_refused_by_name(start, ours):
    from kvweir import InvalidError

    with pytest.raises(InvalidError, match="unknown setting 'max_byte'.*did you mean 'max_bytes'"):
        start(ours(max_byte=1))


def test_blocks_served_from_host_memory_do_not_look_cold(start, ours, tmp_path):
    # room for some 30 of these blocks on disk; the hot prompt stays in the primary (64) and is never loaded
    e = start(ours(max_bytes="1MiB"), block_bytes=16384)
    if not hasattr(e.inner.add(e.keys(1, "x")).context, "_offload_key_positions"):
        pytest.skip("this vLLM does not tell the positions of a request's keys (before 0.31 it calls touch)")
    settle(e)
    hot = e.keys(8, "hot")
    e.ask(hot)
    for i in range(30):
        e.ask(e.keys(2, f"cold {i}"))
        assert e.ask(hot) == 8
    assert e.tier.stats()["evicted_blocks"]["capacity"] > 0
    assert e.tier.stats()["loaded_blocks"] == 0, "the hot prompt was to come from the primary alone"
    e.forget()
    assert e.ask(hot) == 8
    assert e.ask(e.keys(2, "cold 0")) == 0


def test_without_use_the_same_blocks_are_evicted(start, ours):
    e = start(ours(max_bytes="1MiB"), block_bytes=16384)
    hot = e.keys(8, "hot")
    e.ask(hot)
    for i in range(30):
        e.ask(e.keys(2, f"cold {i}"))
    e.forget()
    assert e.ask(hot) < 8


def test_the_bound_holds_under_pressure(start, ours, tmp_path):
    bound = 2 << 20
    e = start(ours(max_bytes=bound), block_bytes=16384, slots=48)
    rnd = random.Random(7)
    prompts = [e.keys(rnd.randrange(4, 20), f"prompt {i}") for i in range(20)]
    for _ in range(60):
        e.ask(rnd.choice(prompts))
        assert on_disk(tmp_path / "kv") <= bound
    s = e.tier.stats()
    assert 0 < s["peak_bytes"] <= bound
    assert s["pinned_blocks"] == 0 and s["reserved_bytes"] == 0


def test_pins_end_with_the_request_also_when_no_promotion_comes(start, ours):
    from vllm.v1.kv_offload.base import ReqContext

    e = start(ours(), slots=8)
    wanted, other = e.keys(8, "wanted"), e.keys(8, "other")
    e.ask(wanted)
    e.forget()
    # all rows of the primary are being written: a hit cannot be promoted
    writer = ReqContext(req_id="writer")
    with e.inner.locked():
        e.mgr.on_new_request(writer)
        assert e.mgr.prepare_store(other, writer) is not None
    reader = ReqContext(req_id="reader")
    with e.inner.locked():
        e.mgr.on_new_request(reader)
        e.mgr.lookup(wanted[0], reader)
    assert e.tier.stats()["pinned_blocks"] == 1
    with e.inner.locked():
        e.mgr.on_request_finished(reader)
        e.mgr.complete_store(set(other), writer, success=False)
        e.mgr.on_request_finished(writer)
    settle(e)
    assert e.tier.stats()["pinned_blocks"] == 0
    assert e.ask(wanted) == 8


def test_no_pin_is_left_after_many_requests_and_aborts(start, ours):
    e = start(ours(max_bytes="4MiB"), slots=32)
    rnd = random.Random(3)
    prompts = [e.keys(12, f"p{i}") for i in range(12)]
    for i in range(60):
        r = e.inner.add(rnd.choice(prompts))
        for _ in range(rnd.randrange(4)):
            e.inner.step()
        if rnd.random() < 0.3:
            e.inner.abort(r)
    settle(e)
    assert e.tier.stats()["pinned_blocks"] == 0


@pytest.mark.parametrize("bound", ["1GiB", None], ids=["bounded", "unbounded"])
@pytest.mark.parametrize("damage", ["a flipped bit", "cut short", "deleted"])
def test_a_bad_block_is_recomputed_and_the_others_are_kept(start, ours, damage, bound):
    e = start(ours(max_bytes=bound, miss_ttl_s=0.01))
    keys = e.keys(16)
    e.ask(keys)
    bad = e.path(keys[9])
    if damage == "deleted":
        bad.unlink()
    elif damage == "cut short":
        os.truncate(bad, 100)
    else:
        with bad.open("r+b") as f:
            f.seek(777)
            byte = f.read(1)[0]
            f.seek(777)
            f.write(bytes([byte ^ 1]))
    e.forget()
    assert e.ask(keys) == 9
    assert e.tier.stats()["load_failures"] == 1
    assert e.tier.stats()["verification_failures"] == (0 if damage == "deleted" else 1)
    # recomputed, stored again, whole again
    e.forget()
    assert e.ask(keys) == 16
    assert e.tier.stats()["pinned_blocks"] == 0


def test_a_load_reports_which_blocks_came(start, ours):
    import numpy as np
    from vllm.v1.kv_offload.base import ReqContext
    from vllm.v1.kv_offload.tiering.base import TransferJob

    e = start(ours())
    keys = e.keys(4)
    e.ask(keys)
    e.path(keys[2]).unlink()
    job = TransferJob(job_id=10**6, keys=keys, chunk_ids=np.arange(4), is_promotion=True, req_context=ReqContext(req_id="r"))
    with e.inner.locked():
        e.tier.submit_load(job)
        end = time.monotonic() + 10
        while not (ended := list(e.tier.get_finished_jobs())) and time.monotonic() < end:
            time.sleep(0.001)
    (result,) = ended
    assert not result.success
    assert set(result.successful_keys) == {keys[0], keys[1], keys[3]}


def test_bytes_and_time_are_those_of_the_device(start, ours):
    import numpy as np
    from vllm.v1.kv_offload.base import ReqContext
    from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

    e = start(ours())
    keys = e.keys(4)

    def store(job_id: int, keys: list[bytes]) -> JobResult:
        job = TransferJob(
            job_id=job_id, keys=keys, chunk_ids=np.arange(len(keys)), is_promotion=False, req_context=ReqContext(req_id="r")
        )
        with e.inner.locked():
            e.tier.submit_store(job)
            end = time.monotonic() + 10
            while not (ended := list(e.tier.get_finished_jobs())) and time.monotonic() < end:
                time.sleep(0.001)
        return ended[0]

    first = store(10**6, keys[:3])
    assert first.success and 0 < first.transfer_time < 5
    again = store(10**6 + 1, keys)
    assert again.success
    if hasattr(first, "transfer_bytes"):
        assert first.transfer_bytes == 3 * (16384 + TRAILER)
        assert again.transfer_bytes == 16384 + TRAILER, "only the block that was not there was written"


def test_poll_time_is_not_taken_for_device_time(start, ours):
    pytest.importorskip("vllm.v1.kv_offload.tiering.backpressure", reason="no back-pressure in this vLLM")
    e = start(ours(backpressure={"backpressure_cls": "kvweir.vllm.KvweirDetector", "warmup_completions": 1}))
    # a healthy disk, and steps of 50 ms with one small job each: fed by the poll, most of these would be dropped
    for i in range(40):
        e.inner.add(e.keys(1, f"slow {i}"))
        e.inner.step()
        time.sleep(0.05)
    settle(e)
    assert e.tier.stats()["stored_blocks"] == 40
    assert e.tier.bp_detector.policy.pop_stores_dropped() == (0, 0)
    assert not e.tier.bp_detector.is_under_pressure()


def test_stores_beyond_the_bytes_in_flight_are_refused_at_once(start, ours):
    pytest.importorskip("vllm.v1.kv_offload.tiering.backpressure", reason="no back-pressure in this vLLM")
    e = start(ours(max_inflight_bytes=3 * 16384))
    detector = e.tier.bp_detector
    assert detector.should_store(100), "a job larger than the limit goes alone"
    detector.begin(2 * 16384)
    assert detector.should_store(1) and not detector.should_store(2)
    assert detector.inflight_refused == 2 and detector.policy.pop_stores_dropped() == (1, 2)
    detector.end(2 * 16384, 0.001, 2 * 16384, False)
    assert detector.should_store(2)


def test_jobs_that_fail_count_as_failures_also_when_some_blocks_were_written(start, ours):
    pytest.importorskip("vllm.v1.kv_offload.tiering.backpressure", reason="no back-pressure in this vLLM")
    from kvweir.vllm import KvweirDetector

    detector = KvweirDetector(high_water_s=0.01, low_water_s=0.002, failure_threshold=3)
    detector.attach(16384, 1 << 20)
    for written in (0, 16384, 3 * 16384):
        assert not detector.is_under_pressure()
        detector.begin(4 * 16384)
        detector.end(4 * 16384, 0.0001, written, True)
    assert detector.is_under_pressure()
    detector.begin(16384)
    detector.end(16384, 0.0001, 16384, False)
    assert detector.inflight_bytes == 0


def test_events_tell_the_true_residency(start, ours):
    from vllm.v1.kv_offload.base import Medium

    from kvweir.vllm import compat

    stanza = ours(max_bytes="1MiB", enable_kv_events=True, locality="LOCAL")
    e = start(stanza, block_bytes=16384, events=True)
    here: set[bytes] = set()
    removals = 0
    every: list[bytes] = []
    for i in range(30):
        keys = e.keys(4, f"p{i}")
        every += keys
        e.ask(keys)
        with e.inner.locked():
            events = [ev for ev in e.mgr.take_events() if ev.medium == Medium.STORAGE]
        for ev in events:
            if "locality" in compat._EVENT:
                assert ev.locality is compat.locality("LOCAL")
            if "ownership" in compat._EVENT:
                assert ev.ownership == "KvweirFsTier"
            if ev.removed:
                removals += len(ev.keys)
                here -= set(ev.keys)
            else:
                here |= set(ev.keys)
    assert removals > 0
    assert here == {k for k in every if e.path(k).exists()}


@pytest.mark.parametrize("tier_on", [True, False])
def test_no_event_without_both_switches(start, ours, tier_on):
    e = start(ours(enable_kv_events=tier_on), events=not tier_on)
    e.ask(e.keys(4))
    assert list(e.tier.take_events()) == []


def test_metrics_carry_vllms_own_tier_label_and_add_up(start, ours, tmp_path):
    stock = {"type": "fs", "root_dir": str(tmp_path / "stock"), "n_read_threads": 1, "n_write_threads": 1}
    e = start(stock, ours(), slots=64)
    tier = e.inner.tiers[1]
    if tier.get_stats() is None:
        pytest.skip("this vLLM takes no metrics from tiers")
    e.tier = tier
    keys = e.keys(16)
    e.ask(keys)
    now = metrics(e)
    label = "('2:KvweirFsTier',)"
    ours_ = {k: v for k, v in now.items() if k.startswith(PREFIX)}
    assert ours_ and all("'2:KvweirFsTier'" in k for k in ours_), sorted(ours_)
    theirs = {k.split(":", 2)[2] for k in now if k.startswith("vllm:kv_offload_tiering") and "KvweirFsTier" in k}
    assert theirs == {label} or not theirs or all(t.startswith(label) for t in theirs), theirs
    assert now[f"{PREFIX}blocks:{label}"] == 16
    assert now[f"{PREFIX}resident_bytes:{label}"] == pytest.approx(on_disk(tmp_path / "kv"), abs=1 << 16)
    assert now[f"{PREFIX}bound_bytes:{label}"] == 1 << 30
    assert now[f"{PREFIX}pinned_blocks:{label}"] == 0
    assert tier.stats()["stored_bytes"] >= 16 * 16384


def test_counters_are_told_once_and_all_declared(start, ours):
    e = start(ours(max_bytes="1MiB"), block_bytes=16384)
    if e.tier.get_stats() is None:
        pytest.skip("this vLLM takes no metrics from tiers")
    total: dict[str, float] = {}
    gauges: set[str] = set()
    from kvweir.vllm import KvweirFsTier
    from kvweir.vllm.metrics import BY_REASON, COUNTERS, GAUGES

    for i in range(20):
        e.ask(e.keys(4, f"p{i}"))
        e.tier._next_stats = 0.0
        for k, v in e.tier.get_stats().reduce().items():
            name = k.split(":")[1].removeprefix("kvweir_")
            if name in GAUGES:
                gauges.add(name)
            else:
                total[k] = total.get(k, 0) + v
    s = e.tier.stats()
    label = "'1:KvweirFsTier'"
    for name in COUNTERS:
        assert total.get(f"{PREFIX}{name}:({label},)", 0) == pytest.approx(s[name]), name
    for reason, n in s["evicted_blocks"].items():
        assert total.get(f"{PREFIX}evicted_blocks:({label}, '{reason}')", 0) == n
    assert s["evicted_blocks"]["capacity"] > 0
    declared = KvweirFsTier.build_metric_definitions({})
    assert {PREFIX + n for n in (*GAUGES, *COUNTERS, *BY_REASON)} == set(declared)


def test_vllms_own_byte_counters_are_what_was_written_and_read(start, ours):
    e = start(ours())
    if not hasattr(e.mgr, "get_stats") or e.tier.get_stats() is None:
        pytest.skip("this vLLM takes no metrics from tiers")
    keys = e.keys(8)
    e.ask(keys)
    e.forget()
    e.ask(keys)
    now = metrics(e)
    label = "('1:KvweirFsTier',)"
    written = [v for k, v in now.items() if k.startswith("vllm:kv_offload_tiering_write_bytes") and label in k]
    read = [v for k, v in now.items() if k.startswith("vllm:kv_offload_tiering_read_bytes") and label in k]
    if not written:
        pytest.skip("this vLLM has no such counter")
    assert sum(written) >= 8 * 16384 and sum(read) >= 8 * 16384


def test_the_end_lets_go_of_the_shared_region_and_the_root(start, ours):
    e = start(ours())
    e.ask(e.keys(8))
    start.stop(e)
    again = start(ours())
    assert again.ask(again.keys(8)) == 8


def test_in_a_forked_child_nothing_is_done_each_job_is_reported_and_it_is_said_once(start, ours, caplog):
    """Once the end raised PanicException there, and each submission was logged with a traceback."""
    from child import in_child
    from vllm.v1.kv_offload.base import LookupResult, ReqContext

    e = start(ours())
    keys = e.keys(4)
    e.ask(keys)
    tier, context = e.tier, ReqContext(req_id="child")

    def calls():
        caplog.set_level("INFO", logger="vllm.kvweir")
        assert tier.lookup(keys[0], context) is LookupResult.MISS
        jobs = [SimpleNamespace(job_id=900 + n, keys=keys[:2], chunk_ids=[0, 1], req_context=context) for n in range(6)]
        for n, job in enumerate(jobs):
            (tier.submit_load if n % 2 else tier.submit_store)(job)
        assert tier.has_pending_work()
        assert [(r.job_id, r.success) for r in tier.get_finished_jobs()] == [(900 + n, False) for n in range(6)]
        assert list(tier.get_finished_jobs()) == [] and not tier.has_pending_work()
        tier.on_request_finished(context)
        tier.drain_jobs()
        assert list(tier.take_events()) == [] and tier.get_stats() is None
        tier.shutdown()
        tier.shutdown()
        said = [r.getMessage() for r in caplog.records if r.name == "vllm.kvweir" and r.process == os.getpid()]
        assert len(said) == 1 and "was forked from" in said[0], said

    assert in_child(calls) == 0
    e.forget()
    e.ask(keys)
    assert e.tier.stats()["loaded_blocks"] == 4


def test_calls_after_the_end_do_not_raise(start, ours):
    import numpy as np
    from vllm.v1.kv_offload.base import LookupResult, ReqContext
    from vllm.v1.kv_offload.tiering.base import TransferJob

    e = start(ours())
    keys = e.keys(2)
    e.ask(keys)
    tier, context = e.tier, ReqContext(req_id="late")
    tier.shutdown()
    assert tier.lookup(keys[0], context) is LookupResult.MISS
    job = TransferJob(job_id=10**6, keys=keys, chunk_ids=np.arange(2), is_promotion=True, req_context=context)
    tier.submit_load(job)
    assert [(r.job_id, r.success) for r in tier.get_finished_jobs()] == [(10**6, False)]
    tier.on_request_finished(context)
    tier.drain_jobs()
    assert list(tier.take_events()) == []
    tier.get_stats()
    tier.shutdown()


@pytest.mark.parametrize(("layout", "chosen"), [(None, "pack"), ("auto", "pack"), ("pack", "pack"), ("fs", "fs")])
def test_the_layout_follows_the_stanza(start, ours, layout, chosen):
    e = start(ours(type="KvweirTier", layout=layout))
    assert e.tier._tier.layout() == chosen
    keys = e.keys(8)
    e.ask(keys)
    e.forget()
    assert e.ask(keys) == 8


def test_the_tier_of_files_has_one_layout(start, ours):
    with pytest.raises(Exception, match="KvweirFsTier has layout 'fs'; use KvweirTier"):
        start(ours(layout="pack"))
