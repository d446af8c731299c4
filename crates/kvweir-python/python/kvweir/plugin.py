"""The ``vllm.general_plugins`` entry point: makes the short type name ``kvweir_fs`` known."""

SHORT_NAME = "kvweir_fs"


def register() -> None:
    """Registers the tier with vLLM's factory; once, and never at the price of vLLM's start."""
    try:
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    except ImportError:
        return
    known = getattr(SecondaryTierFactory, "_registry", {})
    if SHORT_NAME not in known:
        SecondaryTierFactory.register_tier(SHORT_NAME, "kvweir.vllm", "KvweirFsTier")
