"""Claims about a real engine on CPU whose prompts are longer than its primary tier: they are answered, and as without one.

vLLM's manager alone takes a slot for every block that a tier holds, evicts for the end of a prompt what it promoted for
its beginning, and never schedules such a request.
"""

from pathlib import Path

import pytest
from host import Engine, Round, tier

SLOTS, BLOCK_TOKENS, BLOCK_BYTES = 100, 32, 131072
# in blocks: what fits in every way, all but fits, and does not
BLOCKS = [90, 102, 104, 200]
PROMPTS = [(20 + n, n * BLOCK_TOKENS + 3) for n in BLOCKS]
HITS = "vllm:external_prefix_cache_hits"


@pytest.fixture(scope="module")
def filled(work: Path) -> tuple[Path, Round]:
    """A root with all blocks of the prompts, and the answers without a tier."""
    root = work / "long"
    plan = {"rounds": [PROMPTS, PROMPTS]}
    plain = Engine("cpu", work, "long-plain", {**plan, "tiers": None})
    fill = {"tiers": [tier(root, max_bytes="256MiB")], "rounds": [PROMPTS]}
    (cold,) = Engine("cpu", work, "long-fill", fill).rounds()
    _, without = plain.rounds()
    assert cold.tokens == without.tokens
    assert cold.total("vllm:kvweir_stored_blocks") == sum(BLOCKS)
    return root, without


@pytest.mark.parametrize("env", ["cpu", "cpu33"])
@pytest.mark.parametrize("together", [False, True])
def test_prompts_longer_than_the_primary_are_answered_as_without_a_tier(
    filled: tuple[Path, Round], work: Path, env: str, together: bool
) -> None:
    root, without = filled
    plan = {
        "tiers": [tier(root, max_bytes="256MiB")],
        "cpu_bytes": SLOTS * BLOCK_BYTES,
        "rounds": [PROMPTS, PROMPTS],
        "together": together,
    }
    for n, served in enumerate(Engine(env, work, f"long-{env}-{together}", plan).rounds(), 1):
        cached = [a["cached"] // BLOCK_TOKENS for a in served.answers]
        seconds = [(a["seconds"], b["seconds"]) for a, b in zip(served.answers, without.answers, strict=True)]
        print(f"{env}, together {together}, round {n}: blocks hit {cached} of {BLOCKS}; seconds (without) {seconds}")
        assert served.tokens == without.tokens
        for hit, blocks in zip(cached, BLOCKS, strict=True):
            fits = min(blocks, SLOTS)
            assert fits // 2 <= hit <= blocks, f"{hit} of {blocks} blocks in {SLOTS} slots"
        loaded = served.total("vllm:kvweir_loaded_blocks")
        used = served.total(HITS) / BLOCK_TOKENS
        assert loaded <= 1.2 * used, f"{loaded} loaded for {used} used"
        assert served.total("vllm:kvweir_promised_slots") == served.total("vllm:kvweir_pinned_blocks") == 0
