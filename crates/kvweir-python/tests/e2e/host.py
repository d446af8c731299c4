"""Runs engines in their own processes and environments (``scripts/vllm-env``), and makes small file systems to fill."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from places import MODEL, VLLM_ENV

HERE = Path(__file__).resolve().parent
LIFETIME_S = 900


def tier(root: Path, **settings: Any) -> dict[str, Any]:
    """A stanza of a kvweir tier."""
    return {"type": "KvweirFsTier", "module_path": "kvweir.vllm", "root_dir": str(root), **settings}


@dataclass(frozen=True)
class Round:
    """What an engine answered between two drops of its caches."""

    answers: list[dict[str, Any]]
    metrics: dict[str, float]

    @property
    def tokens(self) -> list[list[int]]:
        return [a["tokens"] for a in self.answers]

    def total(self, name: str, place: int | None = None, **labels: str) -> float:
        """The sum of a metric over its labels, or for the tier at one place (from 1)."""
        sum_ = 0.0
        for key, value in self.metrics.items():
            bare, brace, rest = key.partition("{")
            if bare != name:
                continue
            has = json.loads(brace + rest) if brace else {}
            if place is not None and not has.get("tier", "").startswith(f"{place}:"):
                continue
            if all(has.get(k) == v for k, v in labels.items()):
                sum_ += value
        return sum_


class Engine:
    """One lifetime that runs in the background until its result is asked for."""

    def __init__(self, env: str, work: Path, name: str, plan: dict[str, Any]) -> None:
        self._out = work / f"{name}.json"
        self._log = work / f"{name}.log"
        plan_file = work / f"{name}.plan.json"
        plan_file.write_text(json.dumps({"model": str(MODEL), "cpu_bytes": 64 << 20, **plan}))
        command = [str(VLLM_ENV), env, "python", str(HERE / "engine.py"), str(plan_file), str(self._out)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def rounds(self) -> list[Round]:
        """Waits for the end; says what the log said last when it was a bad one."""
        try:
            code = self._process.wait(LIFETIME_S)
        finally:
            stop(self._process)
        if code != 0:
            raise AssertionError(f"engine ended with {code}: ...{self._log.read_text()[-3000:]}")
        result = json.loads(self._out.read_text())
        print(f"vLLM {result['vllm']}, started in {result['start_s']} s, log {self._log}")
        return [Round(r["answers"], r["metrics"]) for r in result["rounds"]]


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that leads a session, and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def shared_regions() -> list[Path]:
    """The regions that engines, dead or alive, have in shared memory."""
    return list(Path("/dev/shm").glob("vllm_offload_*.mmap*"))


def in_use(path: Path) -> bool:
    """Whether a process maps the file."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if str(path) in maps.read_text():
                return True
    return False


@contextlib.contextmanager
def mounted(size: int) -> Iterator[Path | None]:
    """A tmpfs of its own; None without the right to mount."""
    with tempfile.TemporaryDirectory(prefix="kvweir-e2e-") as place:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "kvweir-e2e", place], capture_output=True, check=False
        )
        if done.returncode != 0:
            print(f"no tmpfs: {done.stderr.decode().strip()}", file=sys.stderr)
            yield None
            return
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", "-l", place], check=True)


@contextlib.contextmanager
def disk_image(folder: Path, size: int) -> Iterator[Path | None]:
    """An ext4 of its own on a file; None without the right to mount. Unlike a tmpfs it can be frozen."""
    image, place = folder / "disk.img", folder / "disk"
    place.mkdir()
    with image.open("wb") as f:
        f.truncate(size)
    for command in (
        ["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image)],
        ["mount", "-o", "loop", str(image), str(place)],
    ):
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0:
            print(f"no disk image: {done.stderr.decode().strip()}", file=sys.stderr)
            yield None
            return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        image.unlink()


@contextlib.contextmanager
def frozen(place: Path) -> Iterator[None]:
    """Writes to the file system wait."""
    subprocess.run(["fsfreeze", "-f", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(place)], check=True)


def used(place: Path) -> int:
    """Bytes that the file system says are taken."""
    space = os.statvfs(place)
    return (space.f_blocks - space.f_bfree) * space.f_frsize


def fill(root: Path, leave: int) -> None:
    """Writes zeroes until only ``leave`` bytes are free."""
    space = os.statvfs(root)
    with (root / "filler").open("wb") as out:
        left = space.f_bavail * space.f_frsize - leave
        while left > 0:
            left -= out.write(bytes(min(left, 1 << 20)))
