"""The ``vllm.general_plugins`` entry point: makes the short type names known."""

SHORT_NAMES = {"kvweir": "KvweirTier", "kvweir_fs": "KvweirFsTier"}


def register() -> None:
    """Registers the tiers with vLLM's factory; once, and never at the price of vLLM's start."""
    try:
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    except ImportError:
        return
    known = getattr(SecondaryTierFactory, "_registry", {})
    for name, tier in SHORT_NAMES.items():
        if name not in known:
            SecondaryTierFactory.register_tier(name, "kvweir.vllm", tier)
