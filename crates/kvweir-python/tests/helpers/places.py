"""Where things lie: the repository, its scripts, and a second opinion that may be there beside it."""

import os
import subprocess
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
REPO = TESTS.parents[2]
VLLM_ENV = REPO / "scripts" / "vllm-env"
CACHE = Path(os.environ.get("KVWEIR_CACHE") or Path.home() / ".cache" / "kvweir")
MODEL = CACHE / "tiny-model"


def _shared() -> Path:
    if told := os.environ.get("KVWEIR_SHARED"):
        return Path(told)
    # a worktree may lie elsewhere: `shared` is beside the main checkout
    asked = ["git", "-C", str(REPO), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    common = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return (Path(common).parent if common else REPO).parent / "shared"


RIG = _shared() / "vllm-rig"


def rig_missing() -> str | None:
    """Why another's rig for vLLM cannot be used, if it cannot."""
    if (RIG / "env.sh").is_file():
        return None
    return f"no second opinion: no rig at {RIG} (KVWEIR_SHARED names another place)"
