"""What a user reads who errs in the stanza, through vLLM's own code, and how vLLM and we name a tier."""

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

import kvweir


def ours_only(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Our lines of level ERROR."""
    return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR and r.name == "vllm.kvweir"]


@pytest.fixture
def log(caplog, monkeypatch):
    """vLLM's logger does not pass records on."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.INFO, "vllm.kvweir"):
        yield caplog


def test_a_tier_with_several_mistakes_tells_all_in_one_line(start, ours, log):
    with pytest.raises(kvweir.InvalidError) as e:
        start(ours(max_bytes="300KiB", policy="fifo", pin_ttl_s=0, max_byte=1), block_bytes=1 << 20)
    (line,) = ours_only(log)
    for part in ("policy = 'fifo'", "pin_ttl_s = 0", "unknown setting 'max_byte'", "max_bytes 307200 is below one block"):
        assert part in line and part in str(e.value)


def test_a_missing_parent_is_told_with_the_other_mistakes(start, ours, log):
    with pytest.raises(kvweir.InvalidError):
        start(ours(root_dir="/nowhere/at/all", verify="no"))
    (line,) = ours_only(log)
    assert "/nowhere/at does not exist" in line and "verify = 'no'" in line


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"max_inflight_bytes": -5, "alpha": 2}, ["max_inflight_bytes = -5", "alpha = 2"]),
        ({"failure_threshold": True}, ["failure_threshold = True"]),
        ({"warmup_completions": 2**70, "cooldown_s": "x"}, ["warmup_completions = ", "cooldown_s = 'x'"]),
        ({"high_watr_s": 1}, ["did you mean 'high_water_s'"]),
        ({"low_water_s": 0.5}, ["low_water_s = 0.5 lies above high_water_s = 0.01"]),
        ({"policy_cls": "kvweir.vllm.KvweirDropPolicy", "decay_half_life_s": 0}, ["pressure never ends"]),
        ({"policy_cls": "DropStorePolicy", "low_water_s": 0}, ["pressure never ends"]),
    ],
)
def test_settings_of_back_pressure_are_checked_at_the_start(start, ours, log, settings, parts):
    """They were looked at when a store was in flight, and ended as TypeError in vLLM's scheduler."""
    pytest.importorskip("vllm.v1.kv_offload.tiering.backpressure", reason="no back-pressure in this vLLM")
    with pytest.raises(ValueError):
        start(ours(backpressure={"backpressure_cls": "kvweir.vllm.KvweirDetector", **settings}))
    (line,) = ours_only(log)
    for part in parts:
        assert part in line


def test_a_bound_on_bytes_in_flight_with_a_unit_works_inside_back_pressure(start, ours):
    pytest.importorskip("vllm.v1.kv_offload.tiering.backpressure", reason="no back-pressure in this vLLM")
    bound = {"backpressure_cls": "kvweir.vllm.KvweirDetector", "max_inflight_bytes": "512MiB"}
    e = start(ours(backpressure=bound))
    assert e.tier.bp_detector.max_inflight_bytes == 512 << 20
    keys = e.keys(8)
    e.ask(keys)
    e.forget()
    assert e.ask(keys) == 8


def test_a_wrong_locality_is_told_by_name(start, ours, log):
    with pytest.raises(kvweir.InvalidError, match="locality = 3"):
        start(ours(locality=3, backpressure={"backpressure_cls": "kvweir.vllm.KvweirDetector"}))


def test_a_misspelled_class_is_told_with_the_near_one(log):
    """vLLM takes the class by its name from our module; the bare AttributeError named nothing."""
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    import kvweir.vllm

    with pytest.raises(AttributeError, match="did you mean 'KvweirTier'"):
        SecondaryTierFactory.get_tier_class({"type": "KvweirTeir", "module_path": "kvweir.vllm"})
    (line,) = ours_only(log)
    assert "did you mean 'KvweirTier'" in line
    with pytest.raises(AttributeError, match="it has .*KvweirTier"):
        kvweir.vllm.Banana  # noqa: B018
    log.clear()
    assert not hasattr(kvweir.vllm, "__path_of_nothing__") and not hasattr(kvweir.vllm, "nothing")
    assert ours_only(log) == []


def test_the_front_end_checks_a_tier_where_it_asks_for_its_metrics(log, tmp_path):
    from kvweir.vllm import KvweirTier

    good = {"type": "KvweirTier", "module_path": "kvweir.vllm", "root_dir": str(tmp_path)}
    assert KvweirTier.build_metric_definitions(good) == KvweirTier.build_metric_definitions({})
    with pytest.raises(kvweir.InvalidError, match="2 mistakes"):
        KvweirTier.build_metric_definitions({**good, "policy": 3, "layout": 4})
    assert len(ours_only(log)) == 1


EARLY = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
args = EngineArgs(model=sys.argv[1], kv_transfer_config=json.loads(sys.argv[2]))
try:
    args.create_engine_config()
except Exception as e:
    print(type(e).__name__, e)
"""


def test_vllms_front_end_refuses_a_wrong_stanza_before_it_starts_an_engine(tmp_path):
    """It took 84 to 114 s, and some 220 lines of tracebacks."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    tier = {"type": "KvweirTeir", "module_path": "kvweir.vllm", "root_dir": str(tmp_path / "kv"), "max_bytes": 0}
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 1 << 30, "secondary_tiers": [tier]}
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "INFO"}
    run = [sys.executable, "-c", EARLY, str(tmp_path), json.dumps(config)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, env=env)
    said = done.stdout + done.stderr
    lines = [line for line in said.splitlines() if "ERROR" in line and "kvweir" in line]
    assert len(lines) == 1, said
    assert "'KvweirTier'" in lines[0] and "max_bytes = 0" in lines[0]
    assert "InvalidError kvweir: 2 mistakes" in done.stdout, said


def test_every_class_that_a_stanza_may_name_is_known_to_the_checker():
    import kvweir.vllm
    from kvweir._kvweir import check_stanza

    for name in kvweir.vllm.__all__:
        tier: dict[str, Any] = {"type": "kvweir", "root_dir": "/kv", "backpressure": {}}
        extra: dict[str, Any] = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 1, "secondary_tiers": [tier]}
        tier["backpressure"]["backpressure_cls"] = "kvweir.vllm.KvweirDetector"
        if name.endswith("Spec"):
            extra |= {"spec_name": name, "spec_module_path": "kvweir.vllm"}
        elif name.endswith("Tier"):
            tier |= {"type": name, "module_path": "kvweir.vllm"}
        elif name.endswith("Policy"):
            tier["backpressure"]["policy_cls"] = f"kvweir.vllm.{name}"
        else:
            tier["backpressure"]["backpressure_cls"] = f"kvweir.vllm.{name}"
        config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
        assert check_stanza(config)[:3] == ([], [], 1), name


def test_tiers_of_one_type_and_root_have_the_labels_that_vllm_gives_them(start, ours, tmp_path):
    """Two with another namespace_extra shared the label 1; two that are alike in everything must differ too."""
    root = str(tmp_path / "kv")
    e = start(*(ours(root_dir=root, namespace_extra=x) for x in ("a", "b", "b", "a")))
    if e.tier.get_stats() is None:
        pytest.skip("this vLLM takes no metrics from tiers")
    told = [t._reporter._label for t in e.inner.tiers]
    theirs = [e.mgr._metrics.tier_label(i)[0] for i in range(4)]
    assert told == theirs == [f"{i}:KvweirFsTier" for i in (1, 2, 3, 4)]


def test_an_engines_request_may_have_any_name(start, ours):
    e = start(ours())
    keys = e.keys(4)
    e.ask(keys)
    e.forget()
    request = e.inner.add(keys, "caf\ud800")
    e.inner.run()
    assert request.hits == 4
    assert e.tier.stats()["pinned_blocks"] == 0
