"""kvweir inside vLLM 0.30 to 0.33: tiers, back-pressure, offloading on the CPU platform.

Importing this module is cheap: vLLM's front end does it for metric definitions only.
"""

from typing import Any

from kvweir.vllm.pressure import KvweirDetector, KvweirDropPolicy, KvweirThrottledDropPolicy
from kvweir.vllm.tier import KvweirFsTier, KvweirTier

__all__ = [
    "KvweirCpuOffloadingSpec",
    "KvweirDetector",
    "KvweirDropPolicy",
    "KvweirFsTier",
    "KvweirThrottledDropPolicy",
    "KvweirTier",
]


def __getattr__(name: str) -> Any:
    if name == "KvweirCpuOffloadingSpec":
        # needs torch
        from kvweir.vllm.cpu import KvweirCpuOffloadingSpec

        return KvweirCpuOffloadingSpec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
