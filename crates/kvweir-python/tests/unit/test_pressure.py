"""Detector and policies: the examples of the specification, times passed in."""

import pytest

from kvweir import Detector, InvalidError, Policy

MIB = 1 << 20
ADMIT, COOLDOWN, ASK = 0, 1, 2


def detector(**more) -> Detector:
    return Detector(
        **{
            "high_water_s": 0.010,
            "low_water_s": 0.002,
            "alpha": 0.5,
            "warmup_completions": 2,
            "decay_half_life_s": 2.0,
            "cooldown_s": 1.0,
            **more,
        }
    )


@pytest.mark.parametrize(
    ("tier", "locality", "marks"),
    [
        ("fs", None, (0.010, 0.002, 3)),
        ("fs", "LOCAL", (0.010, 0.002, 3)),
        ("fs", "remote", (0.050, 0.010, 3)),
        ("obj", None, (0.050, 0.010, 3)),
        ("p2p", None, (0.010, 0.002, None)),
    ],
)
def test_default_marks(tier, locality, marks):
    assert Detector.defaults(tier, locality) == marks


def test_warm_up_collects_and_seeds_with_the_mean():
    d = detector(warmup_completions=3)
    for seconds in (1.0, 2.0):
        d.completed(1.0, seconds, MIB)
        assert d.ema == 0.0
    d.completed(1.0, 6.0, MIB)
    assert d.ema == 3.0
    assert not d.is_under_pressure(1.0)


def test_pressure_decays_in_silence_and_then_cools_down():
    d = detector()
    for _ in range(3):
        d.completed(1.0, 0.016, MIB)
    assert d.is_under_pressure(1.0) and d.ask(1.0) == ASK
    assert d.is_under_pressure(3.0) and d.ema == pytest.approx(0.008)
    assert not d.is_under_pressure(8.0)
    assert [d.ask(8.1) for _ in range(4)] == [ASK, COOLDOWN, ASK, COOLDOWN]
    assert d.ask(9.1) == ASK


def test_ten_fast_stores_open_the_fast_path():
    d = detector()
    for _ in range(11):
        d.completed(1.0, 0.001, MIB)
        assert not d.is_healthy()
    d.completed(1.0, 0.001, MIB)
    assert d.is_healthy() and d.ask(1.0) == ADMIT
    d.failed(1.0)
    assert d.is_healthy(), "without a threshold failures are ignored"


def test_failures_in_a_row_make_pressure_even_in_warm_up():
    d = detector(failure_threshold=2)
    d.failed(1.0)
    assert not d.is_under_pressure(1.0)
    d.failed(1.0)
    assert d.is_under_pressure(1.0)
    assert d.ema == pytest.approx(0.040)
    assert d.stats()["consecutive_store_failures"] == 2
    d.reset()
    assert not d.is_under_pressure(1.0) and d.ema == 0.0


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": 1.5}, "alpha"),
        ({"low_water_s": 1.0}, "low_water"),
        ({"failure_threshold": 0}, "failure_threshold"),
    ],
)
def test_bad_settings_are_named(setting, word):
    with pytest.raises(InvalidError, match=word):
        detector(**setting)


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.4, 0.75, 1.0])
def test_the_share_refused_is_the_rate(rate):
    p = Policy(True)
    refused = 0
    for n in range(1, 401):
        refused += not p.admit(1.0 + 2.0 * rate, 1.0, True)
        assert abs(refused - n * rate) <= 1.0 + 1e-8


def test_drop_refuses_everything_under_pressure_and_nothing_else():
    p = Policy(False)
    assert not any(p.admit(1.5, 1.0, True) for _ in range(10))
    assert all(p.admit(1.5, 1.0, False) for _ in range(10))


def test_reset_restarts_the_same_sequence():
    p = Policy(True)
    first = [p.admit(2.5, 1.0, True) for _ in range(7)]
    p.reset()
    assert [p.admit(2.5, 1.0, True) for _ in range(7)] == first


@pytest.mark.parametrize("ramp", [0.0, -1.0, float("nan")])
def test_a_ramp_that_is_none_is_refused(ramp):
    with pytest.raises(InvalidError, match="ramp_factor"):
        Policy(True, ramp)
