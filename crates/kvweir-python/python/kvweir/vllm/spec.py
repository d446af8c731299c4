"""``KvweirOffloadingSpec``: vLLM's tiered KV offloading with kvweir's manager in place of vLLM's.

Workers, shared region, layout and all checks of the configuration are vLLM's own. The tiers are made by vLLM's factory,
so the same stanza works; on the CPU platform the copies are made by ``kvweir.vllm.cpu``.
"""

import logging
from typing import Any

from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

from kvweir._kvweir import read_manager
from kvweir.stanza import refuse
from kvweir.vllm import compat, manager_metrics
from kvweir.vllm.cpu import KvweirCpuOffloadingSpec
from kvweir.vllm.manager import KvweirManager

logger = logging.getLogger("vllm.kvweir")


class KvweirOffloadingSpec(KvweirCpuOffloadingSpec):
    """Tiered offloading whose manager is kvweir's."""

    # tiers of ours may rely on it: nobody touches a row while a job has it
    guards_rows = True

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """Those of vLLM's tiering specification, and the manager's own."""
        return {**super().build_metric_definitions(extra_config), **manager_metrics.definitions()}

    def __init__(self, config: Any) -> None:
        # before vLLM's own specification stumbles over one of them without naming it
        self._settings, mistakes = _read(config.extra_config)
        refuse(mistakes, "kv_connector_extra_config")
        super().__init__(config)

    def get_manager(self) -> Any:
        """The manager; made at the first call, with everything that is wrong told in one line."""
        if self._manager is None:
            self._manager = self._make_manager()
        return self._manager

    def _make_manager(self) -> KvweirManager:
        settings = self._settings
        if self.num_chunks < 1:
            given, slot = self.extra_config.get("cpu_bytes_to_use"), self.kv_bytes_per_chunk
            mistake = f"cpu_bytes_to_use = {given!r}: a slot has {slot} bytes; there is none"
            refuse([mistake], "kv_connector_extra_config")
        region = compat.open_region(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=None,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        self._scheduler_mmap = region
        tiers: list[Any] = []
        view = None
        try:
            view = region.create_kv_memoryview()
            for config in self.secondary_tier_configs:
                tiers.append(SecondaryTierFactory.create_secondary_tier(config, view, self))
            manager = KvweirManager(
                view,
                tiers,
                policy=settings["eviction_policy"],
                events=compat.events_enabled(self),
                windows=compat.known_windows(self),
                promote_share=settings["promote_share"],
                promote_wait_s=settings["promote_wait_s"],
                tier_poll_interval_s=settings["tier_poll_interval_s"],
                info=compat.primary_info(self),
                on_close=lambda: _let_go(view, region),
            )
        except Exception:
            for tier in reversed(tiers):
                try:
                    tier.shutdown()
                except Exception:
                    logger.exception("tier %s did not shut down", getattr(tier, "tier_type", "?"))
            _let_go(view, region)
            self._scheduler_mmap = None
            raise
        logger.info(
            "kvweir manages KV offloading: %d slots of %d bytes, policy %s, tiers: %s",
            self.num_chunks,
            self.kv_bytes_per_chunk,
            settings["eviction_policy"],
            ", ".join(t.tier_type for t in tiers) or "none",
        )
        return manager


def _read(extra: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The manager's settings, and mistakes in them. In the stanza of a tier of ours some mean the same."""
    tiers = extra.get("secondary_tiers")
    ours = [
        tier
        for tier in (tiers if isinstance(tiers, list) else [])
        if isinstance(tier, dict) and str(tier.get("type", "")).lower().startswith("kvweir")
    ]
    written = {n: t[n] for t in reversed(ours) for n in ("promote_share", "promote_wait_s") if n in t}
    return read_manager({**written, **extra})


def _let_go(view: memoryview | None, region: Any) -> None:
    if view is not None:
        view.release()
    region.cleanup()
