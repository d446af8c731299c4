"""Where things lie: the repository, the shared folder with vLLM's rig, the environments' cache."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
REPO = TESTS.parents[2]
SHARED = Path(os.environ.get("KVWEIR_SHARED") or REPO.parent / "shared")
RIG = SHARED / "vllm-rig"


def rig_missing() -> str | None:
    """Why the rig cannot be used, if it cannot."""
    if (RIG / "env.sh").is_file():
        return None
    return f"the rig is not at {RIG} (KVWEIR_SHARED names another place)"
