"""Claims about ``vllm serve`` with eight clients over a bounded tier, watched from outside.

30 seconds of load and one server for each manager, ours and vLLM's; with KVWEIR_EXTENDED=1 five minutes, then two more servers: one that is killed in
the middle of its work, as vLLM does on SIGTERM without ``--shutdown-timeout``, and one that starts after it.
"""

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import host
from server import Load, Sampler, Server

EXTENDED = os.environ.get("KVWEIR_EXTENDED") == "1"
LOAD_S = 300 if EXTENDED else 30
ENV = os.environ.get("KVWEIR_E2E_ENV", "cpu33")
BOUND = 64 << 20
CLIENTS = 8
# 4 KiB per token: some 200 MiB, three times the bound and the primary
PROMPTS = [(100 + i, 512 + 32 * (i % 32)) for i in range(48)]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system that holds nothing but the tier's root."""
    with host.disk_image(tmp_path_factory.mktemp("serve"), 512 << 20) as place:
        if place is None:
            pytest.skip("no right to mount a disk image")
        yield place


def tier_shutdown_s(log: Path) -> float | None:
    """What the tier's log line says about its shutdown."""
    found = re.search(r"shut down in ([0-9.]+) s", log.read_text())
    return float(found[1]) if found else None


@pytest.mark.parametrize("spec", ["KvweirOffloadingSpec", "KvweirCpuOffloadingSpec"])
def test_a_loaded_server_errs_never_keeps_the_bound_and_ends_fast(disk: Path, work: Path, spec: str) -> None:
    """Below our manager, and below vLLM's."""
    root, empty = disk / spec, host.used(disk)
    tiers = [host.tier(root, max_bytes=BOUND)]
    with (
        Server(ENV, work / f"serve-{spec}.log", tiers, "--shutdown-timeout", "10", spec=spec) as server,
        Sampler(lambda: host.used(disk) - empty) as watched,
    ):
        with Load(server, CLIENTS, PROMPTS) as load:
            time.sleep(LOAD_S)
        assert load.errors == []
        told = server.settled_metrics()
        print(f"{load.answered} answers in {LOAD_S} s; at most {watched.worst} of {BOUND} bytes in {watched.looks} looks")
        print({k: v for k, v in told.items() if k.startswith("vllm:kvweir") and not k.endswith("_created") and v})
        print({k: v for k, v in told.items() if k.endswith("external_prefix_cache_hits_total")})
        differing = [k for k, texts in load.answers.items() if len(texts) > 1]
        print(f"prompts with more than one answer: {differing}")
        assert not differing
        assert told["vllm:kvweir_pinned_blocks"] == 0
        assert told["vllm:kvweir_evicted_blocks_total:capacity"] > 0
        assert told["vllm:kvweir_loaded_blocks_total"] > 0
        assert told.get("vllm:kvweir_load_failures_total", 0) == 0
        assert told["vllm:kvweir_resident_bytes"] <= BOUND
        assert watched.looks > LOAD_S * 10
        assert watched.worst <= BOUND

        with host.frozen(disk):
            fill_queue(server)
            queued = server.metrics()
        took = server.terminate()
        ours = tier_shutdown_s(server.log)
        print(
            f"SIGTERM with {queued['vllm:kvweir_queued_blocks']:.0f} blocks queued: "
            f"tier shut down in {ours} s, process gone after {took:.2f} s"
        )
        assert queued["vllm:kvweir_queued_blocks"] > 100
        assert ours is not None and ours < 2.0
        assert took < 2.0 + 10.0
    assert host.used(disk) - empty <= BOUND
    if EXTENDED:
        killed_and_started_again(disk, root, empty, work, spec)


def fill_queue(server: Server) -> None:
    """New prompts, whose stores cannot end while the disk is frozen."""
    asked = [threading.Thread(target=server.complete, args=(900 + i, 4096, 4), daemon=True) for i in range(CLIENTS)]
    for t in asked:
        t.start()
    end = time.monotonic() + 30
    for t in asked:
        t.join(max(0.1, end - time.monotonic()))
    # the numbers come twice a second, with a step
    for _ in range(3):
        time.sleep(0.6)
        threading.Thread(target=server.complete, args=(5, 3, 1), daemon=True).start()
    time.sleep(0.5)


def killed_and_started_again(disk: Path, root: Path, empty: int, work: Path, spec: str) -> None:
    """vLLM kills the engine on SIGTERM and never calls the tier."""
    tiers = [host.tier(root, max_bytes=BOUND)]
    with Server(ENV, work / f"killed-{spec}.log", tiers, spec=spec) as server:
        with Load(server, CLIENTS, PROMPTS) as load:
            time.sleep(15)
            # in the middle of stores and loads
            took = server.terminate()
        print(f"killed with {load.answered} answers given, gone after {took:.2f} s")
        assert tier_shutdown_s(server.log) is None
    on_disk = sum(1 for _ in root.rglob("*.bin"))
    with (
        Server(ENV, work / f"again-{spec}.log", tiers, "--shutdown-timeout", "10", spec=spec) as server,
        Sampler(lambda: host.used(disk) - empty) as watched,
    ):
        found = server.settled_metrics()
        print(f"{on_disk} files after the kill, {found['vllm:kvweir_recovered_blocks']:.0f} blocks found at start")
        assert found["vllm:kvweir_recovered_blocks"] >= on_disk * 0.9 > 0
        with Load(server, CLIENTS, PROMPTS) as again:
            time.sleep(15)
        told = server.settled_metrics()
        assert again.errors == []
        both = [k for k in again.answers if len(again.answers[k] | load.answers.get(k, again.answers[k])) > 1]
        print(f"prompts with another answer than before the kill: {both}")
        assert not both
        assert told["vllm:kvweir_loaded_blocks_total"] > 0
        assert told.get("vllm:kvweir_verification_failures_total", 0) == 0
        assert told["vllm:kvweir_pinned_blocks"] == 0
        assert watched.worst <= BOUND
        print(f"gone after {server.terminate():.2f} s, tier shut down in {tier_shutdown_s(server.log)} s")
