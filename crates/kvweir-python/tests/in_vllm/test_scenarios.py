"""What an engine's life brings, for every way to configure the tier: restarts, shared prefixes, pressure, resets in the
middle of transfers, a prompt of 32,768 tokens. Every loaded byte is compared by the driver.
"""

import random
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm_driver import Driver, Request, prompt  # noqa: E402
from vllm_driver.versions import LATE_ORDER  # noqa: E402

STANZAS: dict[str, dict[str, Any]] = {
    "files": {"type": "KvweirFsTier", "max_bytes": "1GiB"},
    "packed": {"type": "KvweirTier", "max_bytes": "1GiB", "layout": "pack"},
    "packed, io_uring": {"type": "KvweirTier", "max_bytes": "1GiB", "layout": "pack", "engine": "io_uring"},
    "files, without a bound": {"type": "KvweirFsTier"},
}
SIZES = [{"block_bytes": 16384}, {"block_bytes": 5000}, {"block_bytes": 65536, "blocks_per_chunk": 4}]


@pytest.fixture(params=STANZAS)
def stanza(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """One way to configure the tier."""
    return {"module_path": "kvweir.vllm", "root_dir": str(tmp_path / "kv"), **STANZAS[request.param]}


@pytest.fixture(params=SIZES, ids=["16 KiB", "5000 bytes in a padded row", "4 blocks of 64 KiB"])
def size(request: pytest.FixtureRequest) -> dict[str, int]:
    """What a chunk holds."""
    return request.param


@pytest.mark.parametrize("groups", [1, 3])
def test_what_was_stored_comes_back_after_a_reset_and_after_a_restart(stanza, size, groups):
    keys = prompt(32)
    with Driver([stanza], slots=128, groups=groups, **size) as d:
        assert d.ask(keys).hits == 0
        d.forget()
        assert d.ask(keys).hits == 32
    with Driver([stanza], slots=128, groups=groups, **size) as d:
        assert d.ask(keys).hits == 32
        (meter,) = d.meters
        assert (meter.loaded_blocks, meter.used_blocks, meter.failed_blocks) == (32 * groups, 32 * groups, 0)


def test_prompts_that_share_a_prefix_hit_that_and_no_more(stanza, size):
    with Driver([stanza], slots=128, **size) as d:
        d.ask(prompt(40, "one", shared=17))
        d.forget()
        assert d.ask(prompt(40, "two", shared=17)).hits == 17
        assert d.ask(prompt(40, "three")).hits == 0


def test_a_working_set_six_times_the_primary_is_served_from_both(stanza, size):
    chance = random.Random(5)
    prompts = [prompt(20, f"p{i}", shared=4) for i in range(30)]
    weights = [1 / (i + 1) for i in range(30)]
    asked: list[Request] = []
    with Driver([stanza], slots=96, **size) as d:
        for _ in range(25):
            asked += d.ask_all(chance.choices(prompts, weights, k=4))
        assert sum(r.hits or 0 for r in asked) > 0.25 * 20 * len(asked)
        assert d.meters[0].used_blocks > 0
        assert d.tiers[0].stats()["pinned_blocks"] == 0


def test_nothing_is_written_to_the_primary_after_a_reset(stanza, size):
    keys = prompt(48)
    with Driver([stanza], slots=128, **size) as d:
        stored = d.add(keys)
        while not stored.ended or d.copies.under_way:
            d.step()
        # what the tier was given may still be under way
        d.forget()
        d.run()
        d.settle()
        wants = d.add(keys)
        d.step()
        # loads are under way; the client goes, and the caches are dropped
        d.abort(wants)
        d.forget(spoil=0x5A)
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            assert (d.accelerator.slots == 0x5A).all(), "a late write landed in the primary"
            time.sleep(0.02)
        d.settle()
        again = d.ask(keys).hits
        d.forget()
        assert d.ask(keys).hits == 48 and again is not None


def test_a_prompt_of_32768_tokens_comes_back_whole_with_one_lookup_a_chunk(stanza):
    chunks = 2048
    keys = prompt(chunks)
    with Driver([stanza], slots=chunks + 64, block_bytes=4096) as d:
        assert d.ask(keys).hits == 0
        d.settle()
        # a prompt that nearly fills the primary waits while it is written at the rate of a moment ago
        for _ in range(12):
            d.step()
        d.forget()
        (meter,) = d.meters
        before = meter.calls["submit_load"].count
        assert d.ask(keys).hits == chunks
        assert meter.loaded_blocks == chunks and meter.wasted_blocks == 0
        if "max_bytes" in stanza:
            assert meter.lookups["RETRY"] <= LATE_ORDER, "where the bound is kept, what is there is known"
            assert (meter.lookups["HIT"], meter.calls["submit_load"].count - before) == (chunks, 1)


def test_the_tier_has_a_short_name(tmp_path: Path):
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    stanza = {"type": "kvweir_fs", "root_dir": str(tmp_path), "max_bytes": "1GiB", "policy": "arc"}
    keys = prompt(16)
    for hits in (0, 16):
        with Driver([stanza]) as d:
            assert d.ask(keys).hits == hits
