"""Whatever is passed, an exception of Python comes back: no panic crosses, nothing crashes, the tier goes on."""

import random

import pytest
from blocks import IDENTITY, Memory, Request, key, open_tier, store

import kvweir
from kvweir import Detector, FsTier, Policy

ODD = [
    None, True, False, 0, 1, -1, 2**31, 2**32, 2**63, 2**64, -(2**70), 0.0, -0.5, float("nan"), float("inf"), "", "x",
    "\0", "\ud800", "a" * 5000, b"", b"\0", b"k" * 36, b"k" * 5000, [], [None], [1], [-1], [b"k" * 36], (1, 2), {}, {1: 2},
    object(), Request("r"), Request(3), bytearray(8), memoryview(b"12345678"), range(3), key(1), [key(1)], [0], [2**32],
]  # fmt: skip
METHODS = (
    ("lookup", 2), ("submit_store", 4), ("submit_load", 4), ("poll", 0), ("has_pending_work", 0), ("touch", 2),
    ("finish", 2), ("take_events", 0), ("drain", 0), ("stats", 0), ("namespace_dir", 0),
)  # fmt: skip


def call(f, *args, **named) -> None:
    """Calls; only ordinary exceptions may come (a panic would be a BaseException)."""
    try:
        f(*args, **named)
    except Exception as e:
        assert "panic" not in type(e).__name__.lower(), e


@pytest.mark.parametrize("seed", range(4))
def test_methods_of_a_tier(tmp_path, seed):
    rnd = random.Random(seed)
    memory = Memory()
    tier = open_tier(memory, tmp_path, events=True)
    for _ in range(3000):
        name, n = rnd.choice(METHODS)
        call(getattr(tier, name), *(rnd.choice(ODD) for _ in range(n)))
    tier.drain()
    tier.poll()
    assert store(tier, memory, [5], job=10**6)[2] == [True]
    tier.shutdown()
    for name, n in METHODS:
        call(getattr(tier, name), *(rnd.choice(ODD) for _ in range(n)))


@pytest.mark.parametrize("seed", range(4))
def test_constructors(tmp_path, seed):
    rnd = random.Random(seed)
    names = ("name namespace_extra max_bytes min_free_bytes policy load_threads store_threads verify events locality "
             "pin_ttl_s miss_ttl_s").split()  # fmt: skip
    for i in range(150):
        few = [v for v in ODD if not (isinstance(v, int) and v > 1000)]
        named = {n: rnd.choice(few) for n in rnd.sample(names, 2)}
        good = (Memory(2).view(), str(tmp_path / str(i)), IDENTITY, 0, (0, 1, 2))
        args = list(good)
        if rnd.random() < 0.7:
            args[rnd.choice((0, 2, 3, 4))] = rnd.choice(ODD)
        call(FsTier, *args, **named)


def test_detectors_policies_and_functions():
    rnd = random.Random(1)
    names = "high_water_s low_water_s alpha warmup_completions decay_half_life_s cooldown_s failure_threshold".split()
    good = {"high_water_s": 2.0, "low_water_s": 1.0, "alpha": 0.5, "warmup_completions": 2, "decay_half_life_s": 1.0,
            "cooldown_s": 1.0, "failure_threshold": 2}  # fmt: skip
    detector = Detector(**good)
    policy = Policy(True)
    for _ in range(5000):
        call(Detector, **{**good, rnd.choice(names): rnd.choice(ODD)})
        call(Detector.defaults, rnd.choice(ODD), rnd.choice(ODD))
        name, n = rnd.choice((("completed", 3), ("failed", 1), ("ask", 1), ("is_under_pressure", 1), ("reset", 0)))
        call(getattr(detector, name), *(rnd.choice(ODD) for _ in range(n)))
        call(policy.admit, *(rnd.choice(ODD) for _ in range(3)))
        call(Policy, rnd.choice(ODD), rnd.choice(ODD))
        call(kvweir.parse_size, rnd.choice(ODD))
        call(kvweir.namespace_dir, *(rnd.choice(ODD) for _ in range(3)))
        call(kvweir.copy_blocks, rnd.choice(ODD), rnd.choice(ODD), rnd.choice([0, -1, 2**64, None, "x"]))
    detector.stats()
