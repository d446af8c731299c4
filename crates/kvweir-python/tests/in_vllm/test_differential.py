"""In poll-time mode kvweir's detector and policies decide as vLLM's own, observation for observation.

Random sequences of completions, failures, questions, pauses and resets go through both; the clock of both is ours. Times
are multiples of 1/512 s, so that nanoseconds and floats say the same.
"""

import inspect
import random
import time
from typing import Any

import pytest

backpressure = pytest.importorskip("vllm.v1.kv_offload.tiering.backpressure")

import vllm  # noqa: E402

from kvweir.vllm import KvweirDetector, KvweirDropPolicy, KvweirThrottledDropPolicy  # noqa: E402

if "failure_threshold" not in inspect.signature(backpressure.EMABackpressureDetector).parameters:
    # 0.31 and 0.32: no failure threshold, other defaults, shares of whole-number periods
    pytest.skip(f"the detector of vLLM {vllm.__version__} is an older one", allow_module_level=True)

TICK = 1 / 512
THEIRS = {"drop": backpressure.DropStorePolicy, "throttled": backpressure.ThrottledDropPolicy}
OURS = {"drop": KvweirDropPolicy, "throttled": KvweirThrottledDropPolicy}


def settings(rnd: random.Random) -> dict[str, Any]:
    high = rnd.choice([0.005, 0.01, 0.05])
    return {
        "high_water_s": high,
        "low_water_s": high * rnd.choice([0.1, 0.2, 1.0]),
        "alpha": rnd.choice([0.15, 0.5, 1.0]),
        "warmup_completions": rnd.choice([0, 1, 10]),
        "decay_half_life_s": rnd.choice([0.0, 0.5, 2.0]),
        "cooldown_s": rnd.choice([0.0, 0.25, 1.0]),
        "failure_threshold": rnd.choice([None, 1, 3]),
    }


@pytest.mark.parametrize("policy", ["drop", "throttled"])
@pytest.mark.parametrize("pairing", ["ours", "their policy under our detector", "our policy under their detector"])
def test_decisions_drops_and_averages_agree(policy: str, pairing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    decided = refused = 0
    for seed in range(300):
        rnd = random.Random(f"{policy} {pairing} {seed}")
        kw = settings(rnd)
        if policy == "drop" and kw["decay_half_life_s"] == 0.0:
            # ours refuses it: pressure would never end
            kw["decay_half_life_s"] = 0.25
        reference = backpressure.EMABackpressureDetector(policy=THEIRS[policy](), **kw)
        if pairing == "our policy under their detector":
            subject: Any = backpressure.EMABackpressureDetector(policy=OURS[policy](), **kw)
        elif pairing == "ours":
            subject = KvweirDetector(policy=OURS[policy](), **kw)
        else:
            subject = KvweirDetector(policy=backpressure.DropStorePolicy() if policy == "drop" else OURS[policy](), **kw)
        slow = rnd.choice([0.2, 1.0, 3.0])
        for step in range(200):
            what = rnd.random()
            if what < 0.35:
                took = rnd.randrange(1, 40) * TICK * slow * kw["high_water_s"] * 10
                took = round(took / TICK) * TICK
                size = rnd.choice([1 << 19, 1 << 20, 1 << 22])
                reference.update(now - took, size)
                subject.update(now - took, size)
            elif what < 0.42:
                reference.on_store_failed()
                subject.on_store_failed()
            elif what < 0.60:
                now += rnd.choice([1, 5, 64, 512]) * TICK
            elif what < 0.61:
                reference.reset()
                subject.reset()
            elif what < 0.63:
                assert reference.policy.pop_stores_dropped() == subject.policy.pop_stores_dropped()
            else:
                blocks = rnd.randrange(1, 9)
                want = reference.should_store(blocks)
                assert subject.should_store(blocks) == want, (seed, step, kw)
                decided += 1
                refused += not want
            assert subject.store_latency_ema == pytest.approx(reference.store_latency_ema, rel=1e-9, abs=1e-12)
        assert reference.policy.pop_stores_dropped() == subject.policy.pop_stores_dropped()
        now += 100.0
    assert decided > 10_000 and 0.02 < refused / decided < 0.98, "both answers were seen"


def test_settings_that_vllm_refuses_are_refused() -> None:
    good = {"high_water_s": 0.01, "low_water_s": 0.002}
    for bad in ({"alpha": 0}, {"alpha": 1.5}, {"low_water_s": 0.02}, {"failure_threshold": 0}):
        for cls in (backpressure.EMABackpressureDetector, KvweirDetector):
            with pytest.raises(ValueError):
                cls(**{**good, **bad})


@pytest.mark.parametrize("locality", [None, "LOCAL", "remote", "REMOTE"])
@pytest.mark.parametrize("tier", ["fs", "obj"])
def test_default_water_marks_are_vllms(tier: str, locality: str | None) -> None:
    want = backpressure.EMABackpressureDetector.default_config(tier, locality=locality)
    assert KvweirDetector.default_config(tier, locality=locality) == want
