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
TOGETHER = 2
# the environment, and whose manager
LIFETIMES = {"cpu": {}, "cpu33": {}, "cpu33-ours": {"spec": "KvweirOffloadingSpec"}}


@pytest.fixture(scope="module")
def served(work: Path) -> dict[str, list[Round]]:
    """Rounds of engines without a tier and with one that holds all blocks of the prompts, two at a time."""
    root = work / "long"
    stanza = {"tiers": [tier(root, max_bytes="256MiB")]}
    short = {**stanza, "cpu_bytes": SLOTS * BLOCK_BYTES}
    rounds = {"rounds": [PROMPTS] * 3, "together": [TOGETHER]}
    plain = Engine("cpu", work, "long-plain", {**rounds, "tiers": None})
    (cold,) = Engine("cpu", work, "long-fill", {**stanza, "rounds": [PROMPTS]}).rounds()
    without = plain.rounds()
    assert cold.tokens == without[1].tokens
    assert cold.total("vllm:kvweir_stored_blocks") == sum(BLOCKS)
    engines = {
        name: Engine(name.partition("-")[0], work, f"long-{name}", {**rounds, **short, **spec})
        for name, spec in LIFETIMES.items()
    }
    return {"plain": without} | {name: engine.rounds() for name, engine in engines.items()}


@pytest.mark.parametrize("env", LIFETIMES)
def test_prompts_longer_than_the_primary_are_answered_as_without_a_tier(
    served: dict[str, list[Round]], env: str
) -> None:
    for n, (with_tier, without) in enumerate(zip(served[env], served["plain"], strict=True)):
        cached = [a["cached"] // BLOCK_TOKENS for a in with_tier.answers]
        seconds = [(a["seconds"], b["seconds"]) for a, b in zip(with_tier.answers, without.answers, strict=True)]
        asked = "at once" if n == TOGETHER else "one by one"
        print(f"{env}, {asked}: blocks hit {cached} of {BLOCKS}; seconds, without: {seconds}")
        assert with_tier.tokens == without.tokens
        for hit, blocks in zip(cached, BLOCKS, strict=True):
            fits = min(blocks, SLOTS)
            assert fits // 2 <= hit <= blocks, f"{hit} of {blocks} blocks in {SLOTS} slots"
        loaded = with_tier.total("vllm:kvweir_loaded_blocks")
        used = with_tier.total(HITS) / BLOCK_TOKENS
        assert loaded <= 1.2 * used, f"{loaded} loaded for {used} used"
        assert with_tier.total("vllm:kvweir_promised_slots") == with_tier.total("vllm:kvweir_pinned_blocks") == 0
