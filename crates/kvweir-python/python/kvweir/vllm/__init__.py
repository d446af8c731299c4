"""kvweir inside vLLM 0.30 to 0.33: tiers, back-pressure, offloading on the CPU platform.

Importing this module is cheap: vLLM's front end does it for metric definitions only.
"""

import sys
from typing import Any

from kvweir._kvweir import nearest
from kvweir.stanza import tell
from kvweir.vllm.pressure import KvweirDetector, KvweirDropPolicy, KvweirThrottledDropPolicy
from kvweir.vllm.tier import KvweirFsTier, KvweirTier

__all__ = [
    "KvweirCpuOffloadingSpec",
    "KvweirDetector",
    "KvweirDropPolicy",
    "KvweirFsTier",
    "KvweirOffloadingSpec",
    "KvweirThrottledDropPolicy",
    "KvweirTier",
]


def __getattr__(name: str) -> Any:
    if name == "KvweirCpuOffloadingSpec":
        # needs torch
        from kvweir.vllm.cpu import KvweirCpuOffloadingSpec

        return KvweirCpuOffloadingSpec
    if name == "KvweirOffloadingSpec":
        from kvweir.vllm.spec import KvweirOffloadingSpec

        return KvweirOffloadingSpec
    text = f"module {__name__!r} has no attribute {name!r}"
    if name[:1].isupper():
        # vLLM takes a tier's class by the name in the stanza
        near = nearest(name.encode("utf-8", "replace").decode(), __all__)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(__all__)}"
        text += f"; {hint}"
        tell([text], "the KV transfer configuration")
    raise AttributeError(text, name=name, obj=sys.modules[__name__])
