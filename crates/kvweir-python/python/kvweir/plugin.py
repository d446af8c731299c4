"""The ``vllm.general_plugins`` entry point: makes the short type names known, and has settings checked early."""

import functools
import sys
from typing import Any

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
    check_settings_early()


def check_settings_early() -> None:
    """Has the settings of tiers looked at where vLLM's front end makes an engine's configuration.

    Everything later is a minute or two later, in another process: vLLM makes tiers when the model is loaded. Processes
    that make no configuration have not imported ``arg_utils``.
    """
    engine_args = getattr(sys.modules.get("vllm.engine.arg_utils"), "EngineArgs", None)
    create = getattr(engine_args, "create_engine_config", None)
    if create is None or hasattr(create, "_kvweir"):
        return

    @functools.wraps(create)
    def checked(self: Any, *args: Any, **named: Any) -> Any:
        from kvweir.stanza import check_before_start

        # replicas may be on other machines
        here = getattr(self, "data_parallel_size", 1) in (None, 1)
        check_before_start(getattr(self, "kv_transfer_config", None), here)
        return create(self, *args, **named)

    checked._kvweir = True  # type: ignore[attr-defined]
    engine_args.create_engine_config = checked  # type: ignore[union-attr]
