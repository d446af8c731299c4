"""kvweir's detector and policies against vLLM's, same version: random observations, the same decisions.

Poll-time mode: the detector is not attached to a kvweir tier. Times are multiples of 1/512 s, which both sides represent
exactly, so that rounding of the clock plays no part.
"""

import math
import random
import time

import pytest

SEQUENCES = 3000
STEPS = 60


@pytest.fixture(scope="module")
def theirs():
    return pytest.importorskip("vllm.v1.kv_offload.tiering.backpressure", reason="no back-pressure in this vLLM")


@pytest.fixture
def clock(monkeypatch):
    """A clock that both read."""
    now = [1.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def settings(rnd: random.Random, failures: bool) -> dict:
    high = rnd.choice([0.010, 0.050, 1.0, 0.5])
    out = {
        "high_water_s": high,
        "low_water_s": high * rnd.choice([0.0, 0.2, 0.5, 1.0]),
        "alpha": rnd.choice([0.05, 0.15, 0.5, 1.0]),
        "warmup_completions": rnd.choice([0, 1, 3, 10]),
        "decay_half_life_s": rnd.choice([0.0, 0.25, 2.0]),
        "cooldown_s": rnd.choice([0.0, 0.5, 1.0, 5.0]),
    }
    if failures:
        out["failure_threshold"] = rnd.choice([None, 1, 2, 3])
    return out


def accepts_failures(theirs) -> bool:
    return hasattr(theirs.EMABackpressureDetector, "on_store_failed")


def pairs(theirs, which: str):
    """(reference policy class, other policy class)."""
    from kvweir.vllm import KvweirDropPolicy, KvweirThrottledDropPolicy

    return {
        "drop": (theirs.DropStorePolicy, KvweirDropPolicy),
        "throttled": (theirs.ThrottledDropPolicy, KvweirThrottledDropPolicy),
    }[which]


def walk(rnd: random.Random, clock, a, b, failures: bool) -> tuple[int, int]:
    """Feeds both the same; every answer must agree. Returns admitted, dropped."""
    admitted = dropped = 0
    high = a._high
    mood = rnd.random()
    for _ in range(STEPS):
        clock[0] += rnd.choice([0, 1, 1, 8, 64, 512, 2048]) / 512
        if rnd.random() < 0.1:
            mood = rnd.random()
        match rnd.choices("CUSPFRD", [30, 10, 30, 8, 6, 1, 4])[0]:
            case "C":
                x, n = high * rnd.choice([0.01, 0.3, 1.0, 3.0, 9.0]) * mood * 2, rnd.choice([1 << 14, 1 << 20, 5 << 20, 7])
                a.on_store_completed(x * n / (1 << 20), n)
                b.on_store_completed(x * n / (1 << 20), n)
            case "U":
                at, n = clock[0] - rnd.randrange(1024) / 512, rnd.choice([0, -5, 1 << 14, 1 << 20, 64 << 20])
                a.update(at, n)
                b.update(at, n)
            case "S":
                n = rnd.randrange(1, 100)
                answer = a.should_store(n)
                assert b.should_store(n) == answer
                admitted, dropped = admitted + answer, dropped + (not answer)
            case "P":
                assert b.is_under_pressure() == a.is_under_pressure()
                assert b.is_healthy() == a.is_healthy()
            case "F" if failures:
                a.on_store_failed()
                b.on_store_failed()
            case "R":
                a.reset()
                b.reset()
            case "D":
                assert b.policy.pop_stores_dropped() == a.policy.pop_stores_dropped()
        ema = a.store_latency_ema
        assert math.isclose(b.store_latency_ema, ema, rel_tol=1e-12, abs_tol=0.0), (b.store_latency_ema, ema)
    assert b.policy.pop_stores_dropped() == a.policy.pop_stores_dropped()
    if failures:
        assert b.stats["consecutive_store_failures"] == a.stats["consecutive_store_failures"] or not a._failure_threshold
    return admitted, dropped


@pytest.mark.parametrize("policy", ["drop", "throttled"])
@pytest.mark.parametrize(
    "who", ["kvweir's both", "kvweir's policy under vLLM's detector", "vLLM's policy under kvweir's detector"]
)
def test_decisions_agree(theirs, clock, who, policy):
    from kvweir.vllm import KvweirDetector

    reference, other = pairs(theirs, policy)
    failures = accepts_failures(theirs)
    admitted = dropped = 0
    for seed in range(SEQUENCES):
        rnd = random.Random(f"{who} {policy} {seed}")
        clock[0] = 1.0
        s = settings(rnd, failures)
        a = theirs.EMABackpressureDetector(policy=reference(), **s)
        cls = theirs.EMABackpressureDetector if who.startswith("kvweir's policy") else KvweirDetector
        b = cls(policy=(reference if who.startswith("vLLM's policy") else other)(), **s)
        try:
            x, y = walk(rnd, clock, a, b, failures)
        except AssertionError as e:
            raise AssertionError(f"seed {seed}, settings {s}: {e}") from e
        admitted, dropped = admitted + x, dropped + y
    print(f"{who}, {policy}: {SEQUENCES} sequences, {admitted} stores admitted, {dropped} dropped, all alike")
    assert admitted > SEQUENCES and dropped > SEQUENCES


@pytest.mark.parametrize("ramp", [0.5, 1.0, 2.0, 7.5])
def test_the_ramp_agrees(theirs, clock, ramp):
    from kvweir.vllm import KvweirDetector, KvweirThrottledDropPolicy

    rnd = random.Random(ramp)
    for _ in range(300):
        s = settings(rnd, False)
        a = theirs.EMABackpressureDetector(policy=theirs.ThrottledDropPolicy(ramp_factor=ramp), **s)
        b = KvweirDetector(policy=KvweirThrottledDropPolicy(ramp_factor=ramp), **s)
        walk(rnd, clock, a, b, False)


@pytest.mark.parametrize("tier", ["fs", "obj", "p2p", "kvcr", "example"])
@pytest.mark.parametrize("locality", [None, "LOCAL", "REMOTE", "remote"])
def test_the_default_marks_agree(theirs, tier, locality):
    from kvweir.vllm import KvweirDetector

    want = theirs.EMABackpressureDetector.default_config(tier, locality=locality)
    got = KvweirDetector.default_config(tier, locality=locality)
    if not accepts_failures(theirs):
        got.pop("failure_threshold", None)
    assert got == want


@pytest.mark.parametrize(
    "bad", [{"alpha": 0.0}, {"alpha": 1.1}, {"low_water_s": 2.0}, {"failure_threshold": 0}], ids=lambda b: next(iter(b))
)
def test_bad_settings_raise_the_same_class(theirs, bad):
    from kvweir.vllm import KvweirDetector

    good = {"high_water_s": 1.0, "low_water_s": 0.5}
    for cls in (theirs.EMABackpressureDetector, KvweirDetector):
        if "failure_threshold" in bad and not accepts_failures(theirs):
            continue
        with pytest.raises(ValueError, match=next(iter(bad)).removesuffix("_s")):
            cls(**{**good, **bad})


@pytest.mark.parametrize("policy_cls", [None, "ThrottledDropPolicy", "DropStorePolicy", "kvweir.vllm.KvweirDropPolicy"])
@pytest.mark.parametrize("detector", ["EMABackpressureDetector", "kvweir.vllm.KvweirDetector"])
@pytest.mark.parametrize("kind", ["fs", "kvweir"])
def test_the_configuration_takes_every_combination(start, ours, tmp_path, theirs, policy_cls, detector, kind):
    stock = {"type": "fs", "root_dir": str(tmp_path / "kv"), "n_read_threads": 2, "n_write_threads": 2}
    stanza = ours() if kind == "kvweir" else stock
    e = start({**stanza, "backpressure": {"backpressure_cls": detector, **({"policy_cls": policy_cls} if policy_cls else {})}})
    keys = e.keys(8)
    e.ask(keys)
    e.forget()
    assert e.ask(keys) == 8
    assert e.tier.bp_detector.should_store(1)
