"""Settings at the terminal: one line of the log with all mistakes, before anything is raised. Needs no vLLM."""

import json
import logging
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kvweir import InvalidError, plugin, stanza
from kvweir._kvweir import check_stanza, check_tier, nearest, read_backpressure

BAD_TIER = {
    "type": "KvweirTeir",
    "module_path": "kvweir.vllm",
    "root_dir": "/nowhere/at/all",
    "max_bytes": "much",
    "backpressure": {"backpressure_cls": "kvweir.vllm.KvweirDetector", "failure_threshold": True},
}


def config(*tiers: Any, **extra: Any) -> dict[str, Any]:
    """A transfer configuration with these tiers."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 1 << 30,
            "secondary_tiers": list(tiers),
            **extra,
        },
    }


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Our lines of level ERROR."""
    return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR and r.name == "vllm.kvweir"]


PARTS = (
    "type = 'KvweirTeir': did you mean 'KvweirTier'?",
    "max_bytes = 'much'",
    "failure_threshold = True",
    "/nowhere/at does not exist",
)


def test_all_mistakes_are_one_line_before_anything_is_raised(caplog):
    with caplog.at_level(logging.INFO, "vllm.kvweir"), pytest.raises(InvalidError) as e:
        stanza.check_before_start(config(BAD_TIER))
    (line,) = errors(caplog)
    assert "\n" not in line and "4 mistakes" in line
    for part in PARTS:
        assert part in line
        assert part in str(e.value)


def test_vllms_own_configuration_object_is_read_too(caplog):
    made = types.SimpleNamespace(**config(BAD_TIER), engine_id="x", kv_port=1)
    with pytest.raises(InvalidError, match="KvweirTeir"):
        stanza.check_before_start(made)
    stanza.check_before_start(None)
    assert len(errors(caplog)) == 1


def test_the_line_is_one_of_level_error_also_before_vllm_has_a_log():
    """vLLM 0.33 configures its log after the configuration was made."""
    code = "from kvweir import stanza; stanza.check_before_start({'kv_connector': 'OffloadingConnector', 'kv_role': 'kv_both', "
    code += "'kv_connector_extra_config': {'secondary_tiers': [{'type': 'kvweir', 'root_dir': ''}]}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    told = [line for line in done.stderr.splitlines() if line.startswith("ERROR ")]
    assert len(told) == 1 and "kvweir: 3 mistakes" in told[0] and "root_dir = ''" in told[0], done.stderr


def test_what_is_not_ours_is_not_our_affair(caplog, tmp_path):
    for other in ({"kv_connector": "NixlConnector"}, {}, config({"type": "fs", "rot_dir": 3}), config(), 3):
        stanza.check_before_start(other)
    stanza.check_before_start(config({"type": "kvweir", "root_dir": str(tmp_path / "kv")}, {"type": "fs"}))
    assert errors(caplog) == []


def test_directories_of_other_machines_are_not_looked_at(tmp_path):
    far = config({"type": "kvweir", "root_dir": "/nowhere/at/all"})
    stanza.check_before_start(far, here=False)
    with pytest.raises(InvalidError, match="/nowhere/at does not exist"):
        stanza.check_before_start(far)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidError, match="no directory"):
        stanza.check_before_start(config({"type": "kvweir", "root_dir": str(tmp_path / "file")}))


def test_the_plugin_has_settings_checked_where_an_engines_configuration_is_made(monkeypatch, caplog):
    """The stanza was looked at 84 to 114 s after the start, in the engine's process."""
    made = []

    class EngineArgs:
        kv_transfer_config: Any = None

        def create_engine_config(self, *args: Any, **named: Any) -> str:
            made.append((args, named))
            return "configuration"

    arg_utils = types.ModuleType("vllm.engine.arg_utils")
    arg_utils.EngineArgs = EngineArgs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", arg_utils)
    for _ in range(3):
        plugin.check_settings_early()
    engine = EngineArgs()
    assert engine.create_engine_config(1, usage=2) == "configuration"
    engine.kv_transfer_config = config(BAD_TIER)
    with pytest.raises(InvalidError):
        engine.create_engine_config()
    assert made == [((1,), {"usage": 2})]
    assert len(errors(caplog)) == 1


def test_a_tiers_own_part_is_checked_with_its_back_pressure():
    mistakes, notes, tiers, roots, manager = check_tier(BAD_TIER)
    assert (len(mistakes), notes, tiers, roots) == (3, [], 1, [("", "/nowhere/at/all")])
    stanza.check_one({})
    with pytest.raises(InvalidError, match="3 mistakes in the stanza of tier 'KvweirTeir'"):
        stanza.check_one(BAD_TIER)


@pytest.mark.parametrize("value", [0, -5, 1.5, True, "0", "much", [], {}, float("nan"), float("inf"), 2**70, b"1", object()])
def test_a_bound_on_bytes_in_flight_is_refused_alike_in_both_places(value):
    _, inside = read_backpressure({"max_inflight_bytes": value}, False)
    outside, *_ = check_tier({"type": "kvweir", "root_dir": "/kv", "max_inflight_bytes": value})
    assert inside == outside
    assert len(inside) == 1
    assert inside[0].startswith(f"max_inflight_bytes = {value!r}: ")


def test_a_size_with_a_unit_is_good_inside_back_pressure_too():
    settings, mistakes = read_backpressure({"max_inflight_bytes": "512MiB"}, False)
    assert (settings["max_inflight_bytes"], mistakes) == (512 << 20, [])


@pytest.mark.parametrize("name", ["low_water_s", "decay_half_life_s"])
def test_marks_that_never_clear_are_refused_where_every_store_is_dropped(name):
    assert read_backpressure({name: 0}, False)[1] == []
    (mistake,) = read_backpressure({name: 0}, True)[1]
    assert mistake.startswith(f"{name} = 0")


def test_odd_values_are_mistakes_and_nothing_else(caplog):
    deep: Any = {}
    for _ in range(2000):
        deep = {"kv_connector_extra_config": deep, "connectors": [deep], "kv_connector": "MultiConnector"}
    cycle: dict[str, Any] = {}
    cycle["secondary_tiers"] = [cycle]
    odd = [None, 3, "x", "\ud800", b"", [], {}, {1: 2}, {"\ud800": "\ud800"}, object(), cycle, deep]
    for value in odd:
        assert check_stanza(value)[0]
        for name in ("type", "root_dir", "policy", "namespace_extra", "max_bytes", "backpressure"):
            tier = {**BAD_TIER, "type": "kvweir", name: value}
            mistakes = check_stanza(config(tier))[0]
            assert mistakes and all("\n" not in m for m in mistakes)
            stanza.tell(mistakes, "a \ud800 place")
    assert all(r.getMessage().isascii() or r.getMessage().encode() for r in caplog.records)


def test_near_names():
    names = ["KvweirTier", "KvweirFsTier"]
    assert nearest("KvweirTeir", names) == "KvweirTier"
    assert nearest("kvweirfstier", names) == "KvweirFsTier"
    assert nearest("x" * 10**6, names) is None


def test_the_module_checks_a_file_for_who_has_no_command(tmp_path: Path):
    good = {"type": "kvweir", "root_dir": str(tmp_path / "kv"), "max_bytes": "1GiB"}
    cases = [
        (json.dumps(config(good)), 0, "ok    tiers of kvweir: 1"),
        (json.dumps(config(BAD_TIER)), 1, "did you mean 'KvweirTier'?"),
        (json.dumps(config(good | {"root_dir": "/nowhere/at/all"})), 1, "/nowhere/at does not exist"),
        ("type: kvweir", 2, "is not read as JSON"),
    ]
    for text, code, expected in cases:
        file = tmp_path / "config.json"
        file.write_text(text)
        for name, given in ((str(file), ""), ("-", text)):
            run = [sys.executable, "-m", "kvweir.stanza", name]
            done = subprocess.run(run, input=given, capture_output=True, text=True, timeout=60)
            assert (done.returncode, expected in done.stdout + done.stderr) == (code, True), done
