"""A second opinion: scenarios that others wrote against vLLM's manager, where they are at hand.

Store and load, restart, shared prefixes, pressure, resets in the middle of transfers, a 32k-token prompt; bounded and
unbounded, at three chunk sizes. ``test_scenarios.py`` asks the same of our own driver.
"""

import json
import os
import subprocess
import sys

import pytest
from places import RIG, rig_missing

STANZAS = {
    "bounded": {"type": "KvweirFsTier", "module_path": "kvweir.vllm", "root_dir": "{tmp}", "max_bytes": "1GiB"},
    "packed": {"type": "KvweirTier", "module_path": "kvweir.vllm", "root_dir": "{tmp}", "max_bytes": "1GiB", "layout": "pack"},
    "packed-ring": {
        "type": "KvweirTier", "module_path": "kvweir.vllm", "root_dir": "{tmp}", "max_bytes": "1GiB", "engine": "io_uring",
    },
    "unbounded": {"type": "KvweirFsTier", "module_path": "kvweir.vllm", "root_dir": "{tmp}"},
    "by-short-name": {"type": "kvweir_fs", "root_dir": "{tmp}", "max_bytes": "1GiB", "policy": "arc"},
}
# with our manager in the place of vLLM's: over our tier, and over one of vLLM's own
MANAGED = {
    "packed": STANZAS["packed"],
    "stock": {"type": "fs", "root_dir": "{tmp}"},
}


@pytest.mark.parametrize("stanza", MANAGED)
def test_the_rigs_scenarios_pass_under_our_manager(stanza: str) -> None:
    scenarios(MANAGED[stanza], spec="kvweir.vllm:KvweirOffloadingSpec")


@pytest.mark.parametrize("stanza", STANZAS)
def test_the_rigs_scenarios_pass(stanza: str) -> None:
    scenarios(STANZAS[stanza])


def scenarios(stanza: dict[str, str], spec: str | None = None) -> None:
    pytest.importorskip("vllm")
    if missing := rig_missing():
        pytest.skip(missing)
    env = dict(os.environ, KV_TIER=json.dumps(stanza), **({"KV_SPEC": spec} if spec else {}))
    # as the rig's own `env.sh` does
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(RIG), str(RIG / "tiers"), env.get("PYTHONPATH")]))
    if "module_path" not in stanza and stanza["type"] == "kvweir_fs":
        # the entry point is loaded by vLLM's plug-in loader, which the rig does not start
        env["PYTHONSTARTUP"] = ""
        code = "from vllm.plugins import load_general_plugins as load; load(); import pytest, sys; sys.exit(pytest.main())"
        run = [sys.executable, "-c", code]
        env["PYTEST_ADDOPTS"] = "-q -p no:cacheprovider -p no:asyncio test_tier.py -k 'roundtrip or restart'"
    else:
        run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "test_tier.py"]
    done = subprocess.run(run, cwd=RIG, env=env, capture_output=True, text=True, timeout=600)
    print(done.stdout[-300:])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
