"""kvweir: KV-cache tiers for LLM inference servers.

The engine is native; this package gives it Python's types. Adapters live in modules of their own and import their host
only when imported themselves: ``kvweir.vllm``.
"""

from kvweir._kvweir import (
    BusyError,
    ClosedError,
    CorruptError,
    Detector,
    FsTier,
    FullError,
    InvalidError,
    KvweirError,
    Policy,
    UnavailableError,
    __version__,
    copy_blocks,
    namespace_dir,
    parse_size,
    take_logs,
)

__all__ = [
    "BusyError",
    "ClosedError",
    "CorruptError",
    "Detector",
    "FsTier",
    "FullError",
    "InvalidError",
    "KvweirError",
    "Policy",
    "UnavailableError",
    "__version__",
    "copy_blocks",
    "namespace_dir",
    "parse_size",
    "take_logs",
]
