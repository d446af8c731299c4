"""The rig's scenarios, all chunk sizes, in a process of their own."""

import json
import os
import re
import subprocess
import sys

import pytest
from places import RIG, rig_missing

TIERS = {
    "unbounded": {"type": "KvweirFsTier", "module_path": "kvweir.vllm", "root_dir": "{tmp}"},
    "bounded": {"type": "KvweirFsTier", "module_path": "kvweir.vllm", "root_dir": "{tmp}", "max_bytes": "1GiB"},
    "short-name": {"type": "kvweir_fs", "root_dir": "{tmp}", "max_bytes": "1GiB", "n_read_threads": 2},
}


@pytest.mark.parametrize("kind", TIERS)
def test_the_rigs_scenarios_pass(kind, tmp_path):
    if missing := rig_missing():
        pytest.skip(missing)
    env = dict(os.environ, KV_TIER=json.dumps(TIERS[kind]), PYTHONDONTWRITEBYTECODE="1", VLLM_LOGGING_LEVEL="ERROR")
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(RIG), str(RIG / "tiers"), env.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 't'}"]
    if kind == "short-name":
        # vLLM's front end does this at start; pytest does not
        (tmp_path / "plugins.py").write_text("from vllm.plugins import load_general_plugins\nload_general_plugins()\n")
        env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"
        command += ["-p", "plugins", "-k", "roundtrip or restart"]
    run = subprocess.run([*command, str(RIG / "test_tier.py")], env=env, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed and int(passed[1]) >= (6 if kind == "short-name" else 18), run.stdout[-500:]


def test_the_plugin_registers_once_and_keeps_what_is_there():
    from vllm.plugins import load_general_plugins
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    from kvweir.plugin import register
    from kvweir.vllm import KvweirFsTier

    load_general_plugins()
    known = SecondaryTierFactory._registry["kvweir_fs"]
    register()
    register()
    assert SecondaryTierFactory._registry["kvweir_fs"] is known
    assert known() is KvweirFsTier
