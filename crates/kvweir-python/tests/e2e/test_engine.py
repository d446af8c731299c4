"""Claims about a real engine on CPU: whatever happens to the tier, the answers are those of an engine without one.

An engine lifetime takes a minute, nearly all of it imports. So each lifetime serves several claims, lifetimes that do
not depend on each other run side by side, and the chain below starts 0.32, then 0.33, then 0.32 over one directory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import host
from host import Engine, Round, tier

LONG, SPOILED, SHORTENED, LATER = (1, 4096), (2, 1536), (3, 1536), (4, 2048)
BLOCK_TOKENS = 32
BLOCK_BYTES = 131072
HITS = "vllm:external_prefix_cache_hits"
READ = "vllm:kv_offload_tiering_read_bytes"


def hits(round_: Round) -> int:
    """Tokens that came from the connector."""
    return int(round_.total(HITS))


@dataclass(frozen=True)
class Chain:
    """Rounds of the lifetimes, in the order in which the engines ran."""

    plain: Round
    cold: Round
    next_version: Round
    damaged: Round
    small: list[Round]


# below vLLM's manager, and below ours
SPECS = ["KvweirCpuOffloadingSpec", "KvweirOffloadingSpec"]


@pytest.fixture(scope="session")
def plain(work: Path) -> Round:
    """An engine without offloading."""
    engine = Engine("cpu", work, "plain", {"tiers": None, "rounds": [[LONG, SPOILED, SHORTENED, LATER]]})
    (round_,) = engine.rounds()
    return round_


@pytest.fixture(scope="session", params=SPECS)
def spec(request: pytest.FixtureRequest) -> str:
    """Whose manager the engines have."""
    return str(request.param)


@pytest.fixture(scope="session")
def small(work: Path, spec: str) -> Iterator[tuple[Engine, bool]]:
    """Two tiers: one bounded to a tenth of the working set, one on a file system that is full."""
    with host.mounted(64 << 20) as full:
        tiers = [tier(work / f"small-{spec}", max_bytes="2MiB")]
        if full is not None:
            host.fill(full, leave=32 << 10)
            tiers.append(tier(full / "root"))
        prompts = [SPOILED, SHORTENED, LONG, SPOILED]
        # the primary holds a third of a long prompt: later prompts push earlier ones out
        plan = {"spec": spec, "tiers": tiers, "cpu_bytes": 24 << 20, "rounds": [prompts, prompts]}
        engine = Engine("cpu", work, f"small-{spec}", plan)
        yield engine, full is not None


@pytest.fixture(scope="session")
def chain(work: Path, spec: str, plain: Round, small: tuple[Engine, bool]) -> Chain:
    """Runs all lifetimes, two at a time."""
    root = work / f"root-{spec}"
    stanza = {"spec": spec, "tiers": [tier(root, max_bytes="256MiB")], "watch": [str(root)]}
    (cold,) = Engine("cpu", work, f"cold-{spec}", {**stanza, "rounds": [[LONG, SPOILED, SHORTENED]]}).rounds()
    (next_version,) = Engine("cpu33", work, f"next-{spec}", {**stanza, "rounds": [[LONG, LATER]]}).rounds()
    small_rounds = small[0].rounds()
    spoiled, shortened = cold.answers[1]["files"], cold.answers[2]["files"]
    _flip(Path(spoiled[len(spoiled) // 2]))
    Path(shortened[len(shortened) // 2]).unlink()
    rounds = [[LONG, LATER, SPOILED, SHORTENED]]
    (damaged,) = Engine("cpu", work, f"damaged-{spec}", {**stanza, "rounds": rounds}).rounds()
    return Chain(plain, cold, next_version, damaged, small_rounds)


def _flip(file: Path) -> None:
    with file.open("r+b") as f:
        f.seek(BLOCK_BYTES // 2)
        byte = f.read(1)
        f.seek(BLOCK_BYTES // 2)
        f.write(bytes([byte[0] ^ 0x10]))


def test_a_cold_tier_changes_no_answer(chain: Chain) -> None:
    assert chain.cold.tokens == chain.plain.tokens[:3]
    assert hits(chain.cold) == 0
    blocks = sum(n // BLOCK_TOKENS for _, n in (LONG, SPOILED, SHORTENED))
    assert chain.cold.total("vllm:kvweir_stored_blocks") == blocks
    assert [len(a["files"]) for a in chain.cold.answers] == [n // BLOCK_TOKENS for _, n in (LONG, SPOILED, SHORTENED)]


def test_the_next_start_serves_the_prefix_from_disk_also_under_the_next_version(chain: Chain) -> None:
    again = chain.next_version
    assert again.tokens == [chain.plain.tokens[0], chain.plain.tokens[3]]
    assert again.answers[0]["cached"] == LONG[1]
    assert hits(again) == LONG[1]
    assert again.total("vllm:kvweir_loaded_blocks") == LONG[1] // BLOCK_TOKENS
    assert again.total(READ) == LONG[1] // BLOCK_TOKENS * BLOCK_BYTES
    assert again.total("vllm:prompt_tokens_cached_by_source", source="disk") == LONG[1]
    assert again.total("vllm:kvweir_recovered_blocks") == chain.cold.total("vllm:kvweir_blocks")
    assert again.total("vllm:kvweir_pinned_blocks") == 0


def test_what_the_newer_version_wrote_the_older_one_serves(chain: Chain) -> None:
    assert chain.damaged.answers[1]["cached"] == LATER[1]
    assert chain.damaged.tokens[1] == chain.plain.tokens[3]


def test_a_corrupted_and_a_deleted_block_change_no_answer_and_are_told(chain: Chain) -> None:
    damaged = chain.damaged
    plain = chain.plain.tokens
    assert damaged.tokens == [plain[0], plain[3], plain[1], plain[2]]
    assert damaged.total("vllm:kvweir_verification_failures") == 1
    # the journal knows of the deleted block: that it is gone shows when it is asked for, once
    assert damaged.total("vllm:kvweir_load_failures") == 2
    assert damaged.total("vllm:kvweir_evicted_blocks", reason="corrupt") == 1
    assert damaged.total("vllm:kvweir_evicted_blocks", reason="external") == 1
    # both came back when their prompts were computed
    assert damaged.total("vllm:kvweir_stored_blocks") == 2
    assert damaged.total("vllm:kvweir_blocks") == damaged.total("vllm:kvweir_recovered_blocks")
    assert damaged.total("vllm:kvweir_pinned_blocks") == 0
    # the blocks before the damage were served
    assert 0 <= damaged.answers[2]["cached"] < SPOILED[1]
    assert 0 <= damaged.answers[3]["cached"] < SHORTENED[1]


def test_a_bound_far_below_the_working_set_holds_and_changes_no_answer(chain: Chain) -> None:
    plain = chain.plain.tokens
    for round_ in chain.small:
        assert round_.tokens == [plain[1], plain[2], plain[0], plain[1]]
    last = chain.small[-1]
    assert last.total("vllm:kvweir_resident_bytes", place=1) <= 2 << 20
    gone = last.total("vllm:kvweir_evicted_blocks", place=1, reason="capacity")
    refused = last.total("vllm:kvweir_refused_blocks", place=1)
    print(f"evicted {gone}, refused {refused}")
    assert gone + refused > 0
    assert last.total("vllm:kvweir_pinned_blocks", place=1) == 0


def test_a_full_file_system_changes_no_answer_and_is_told(chain: Chain, small: tuple[Engine, bool]) -> None:
    if not small[1]:
        pytest.skip("no right to mount a tmpfs")
    last = chain.small[-1]
    refused = last.total("vllm:kvweir_refused_blocks", place=2)
    failed = last.total("vllm:kv_offload_tiering_cascade_job_failures", place=2)
    print(f"refused {refused}, failed jobs {failed}")
    assert refused + failed > 0
    assert last.total("vllm:kvweir_blocks", place=2) == 0


@pytest.mark.parametrize("engine", ["threads", "io_uring"])
def test_a_packed_tier_serves_the_next_start_also_under_the_next_version(plain: Round, work: Path, engine: str) -> None:
    root = work / f"packed-{engine}"
    # what one manager stored the other finds: the directory is the same
    before, after = SPECS if engine == "threads" else reversed(SPECS)
    packed = tier(root, type="KvweirTier", layout="pack", engine=engine, max_bytes="256MiB")
    plan = {"tiers": [packed]}
    first = {**plan, "spec": before, "rounds": [[LONG, SPOILED]]}
    (cold,) = Engine("cpu", work, f"packed-{engine}-1", first).rounds()
    second = {**plan, "spec": after, "rounds": [[LONG, LATER]]}
    (warm,) = Engine("cpu33", work, f"packed-{engine}-2", second).rounds()
    assert cold.tokens == plain.tokens[:2]
    assert warm.tokens == [plain.tokens[0], plain.tokens[3]]
    assert (hits(cold), hits(warm), warm.answers[0]["cached"]) == (0, LONG[1], LONG[1])
    assert warm.total("vllm:kvweir_loaded_blocks") == LONG[1] // BLOCK_TOKENS
    assert warm.total("vllm:kvweir_recovered_blocks") == cold.total("vllm:kvweir_blocks")
    assert warm.total("vllm:kvweir_verification_failures") == warm.total("vllm:kvweir_pinned_blocks") == 0
    blocks = list(root.glob("*/???/*_g*/*.bin"))
    assert blocks == [] and len(list(root.glob("*/000/00_x/*.bin"))) >= 2


@pytest.mark.extended
@pytest.mark.parametrize("env", ["cpu", "cpu33"])
def test_two_lifetimes_of_one_version(work: Path, env: str) -> None:
    root = work / f"twice-{env}"
    plan = {"tiers": [tier(root, max_bytes="256MiB")], "rounds": [[LONG]]}
    plain = Engine(env, work, f"{env}-plain", {"tiers": None, "rounds": [[LONG]]})
    (cold,) = Engine(env, work, f"{env}-1", plan).rounds()
    (warm,) = Engine(env, work, f"{env}-2", plan).rounds()
    (without,) = plain.rounds()
    assert without.tokens == cold.tokens == warm.tokens
    assert (hits(cold), hits(warm)) == (0, LONG[1])
    assert warm.total(READ) == LONG[1] // BLOCK_TOKENS * BLOCK_BYTES
