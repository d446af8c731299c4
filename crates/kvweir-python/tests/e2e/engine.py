"""One lifetime of a real vLLM engine on CPU: runs prompts greedily, writes tokens and metrics as JSON.

    python engine.py PLAN.json OUT.json

Run inside an environment that has vLLM and kvweir. The plan says: ``model``; ``tiers`` (stanzas, or null for an engine
without offloading); ``spec``, the specification: vLLM's manager over the tiers unless it says another; ``cpu_bytes``, the size of the primary tier; ``rounds``, each a list of prompts' seeds and lengths,
caches being dropped between rounds; ``together``, the numbers of rounds whose prompts are asked at once; ``watch``, directories whose new
files are listed after each prompt.
"""

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# lets deferred stores and their reports come through
SETTLE_S = 1.5
STEP_S = 0.05
# of the tiny model: bytes, after three that mean something
FIRST_TOKEN, TOKENS = 3, 259


def prompt(seed: int, length: int) -> list[int]:
    """The same tokens for the same seed and length, whoever asks."""
    numbers = random.Random(seed)
    return [numbers.randrange(FIRST_TOKEN, TOKENS) for _ in range(length)]


def connector(plan: dict[str, Any]) -> Any:
    """The stanza that a user would write."""
    if plan.get("tiers") is None:
        return None
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "spec_name": plan.get("spec", "KvweirCpuOffloadingSpec"),
            "spec_module_path": "kvweir.vllm",
            "cpu_bytes_to_use": plan["cpu_bytes"],
            "secondary_tiers": plan["tiers"],
        },
    )


def metrics(llm: Any) -> dict[str, float]:
    """Counters and gauges by name and labels."""
    out = {}
    for metric in llm.get_metrics():
        labels = {k: v for k, v in (metric.labels or {}).items() if k not in ("model_name", "engine")}
        value = getattr(metric, "value", None)
        if value is not None:
            out[metric.name + (json.dumps(labels, sort_keys=True) if labels else "")] = value
    return out


def files(roots: list[str]) -> set[str]:
    """Block files below the watched directories."""

    def below(root: str) -> Iterator[str]:
        for folder, _, names in os.walk(root):
            yield from (os.path.join(folder, n) for n in names if n.endswith(".bin"))

    return {f for root in roots for f in below(root)}


def main() -> None:
    """Runs the plan."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    started = time.monotonic()
    # GiB for the KV cache, however much memory others use
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(
        model=plan["model"],
        dtype="float32",
        enforce_eager=True,
        max_model_len=8192,
        block_size=32,
        max_num_seqs=8,
        max_num_batched_tokens=8192,
        enable_prefix_caching=True,
        disable_log_stats=False,
        kv_transfer_config=connector(plan),
    )
    ready = time.monotonic()
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)

    def settle() -> None:
        # too short to fill a block: it moves the engine on and is stored nowhere
        filler = SamplingParams(temperature=0.0, max_tokens=1)
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            llm.generate([TokensPrompt(prompt_token_ids=[5, 6, 7])], filler, use_tqdm=False)
            time.sleep(STEP_S)

    seen = files(plan.get("watch", []))
    rounds = []
    for n, wanted in enumerate(plan["rounds"]):
        if n > 0 and not llm.reset_prefix_cache(reset_connector=plan.get("tiers") is not None):
            raise SystemExit("the caches could not be dropped")
        answers = []
        for asked in [wanted] if n in plan.get("together", []) else [[one] for one in wanted]:
            prompts = [TokensPrompt(prompt_token_ids=prompt(seed, length)) for seed, length in asked]
            at = time.monotonic()
            outs = llm.generate(prompts, greedy, use_tqdm=False)
            seconds = time.monotonic() - at
            settle()
            now = files(plan.get("watch", []))
            answers += [
                {
                    "tokens": list(out.outputs[0].token_ids),
                    "cached": out.num_cached_tokens,
                    "seconds": round(seconds, 4),
                    "files": sorted(now - seen, key=lambda f: (os.stat(f).st_mtime_ns, f)),
                }
                for out in outs
            ]
            seen |= now
        rounds.append({"answers": answers, "metrics": metrics(llm)})
    import vllm

    result = {"vllm": vllm.__version__, "start_s": round(ready - started, 1), "rounds": rounds}
    Path(sys.argv[2]).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
