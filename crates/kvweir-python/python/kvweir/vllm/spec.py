"""``KvweirOffloadingSpec``: vLLM's tiered KV offloading with kvweir's manager in place of vLLM's.

Workers, shared region, layout and all checks of the configuration are vLLM's own. The tiers are made by vLLM's factory,
so the same stanza works; on the CPU platform the copies are made by ``kvweir.vllm.cpu``.
"""

import logging
from typing import Any

from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

from kvweir.stanza import refuse
from kvweir.vllm import compat, manager_metrics
from kvweir.vllm.cpu import KvweirCpuOffloadingSpec
from kvweir.vllm.manager import KvweirManager

logger = logging.getLogger("vllm.kvweir")

POLICIES = ("lru", "arc", "s3fifo")


class KvweirOffloadingSpec(KvweirCpuOffloadingSpec):
    """Tiered offloading whose manager is kvweir's."""

    # tiers of ours may rely on it: nobody touches a row while a job has it
    guards_rows = True

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """Those of vLLM's tiering specification, and the manager's own."""
        return {**super().build_metric_definitions(extra_config), **manager_metrics.definitions()}

    def get_manager(self) -> Any:
        """The manager; made at the first call, with everything that is wrong told in one line."""
        if self._manager is None:
            self._manager = self._make_manager()
        return self._manager

    def _make_manager(self) -> KvweirManager:
        extra = self.extra_config
        share, wait = _number(extra, "promote_share", 0.75), _number(extra, "promote_wait_s", 10.0)
        refuse(self._mistakes(share, wait), "kv_connector_extra_config")
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
                policy=self.eviction_policy,
                events=compat.events_enabled(self),
                windows=compat.windows(self),
                promote_share=share,
                promote_wait_s=wait,
                tier_poll_interval_s=float(extra.get("tier_poll_interval_s", 0.001)),
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
            self.eviction_policy,
            ", ".join(t.tier_type for t in tiers) or "none",
        )
        return manager

    def _mistakes(self, share: Any, wait: Any) -> list[str]:
        extra, out = self.extra_config, []
        if self.eviction_policy not in POLICIES:
            out.append(f"eviction_policy = {self.eviction_policy!r}: {', '.join(POLICIES)} is allowed")
        if extra.get("cache_policy_module_path") is not None:
            out.append("cache_policy_module_path: policies written in Python need spec_name TieringOffloadingSpec")
        if _number(extra, "store_threshold", 0) is None or _number(extra, "store_threshold", 0) >= 2:
            out.append("store_threshold: at most 1 is allowed with tiers")
        if share is None or not 0 < share <= 1:
            out.append(f"promote_share = {extra.get('promote_share')!r}: greater than 0 and at most 1 is allowed")
        if wait is None or not 0 <= wait < 1e9:
            out.append(f"promote_wait_s = {extra.get('promote_wait_s')!r}: seconds, zero or more, are allowed")
        if _number(extra, "tier_poll_interval_s", 0) is None:
            out.append(f"tier_poll_interval_s = {extra['tier_poll_interval_s']!r}: seconds are allowed")
        if self.num_chunks < 1:
            out.append(
                f"cpu_bytes_to_use = {extra.get('cpu_bytes_to_use')!r}: a slot has {self.kv_bytes_per_chunk} bytes, "
                "so that there is none; give it more"
            )
        return out


def _number(extra: dict[str, Any], name: str, default: float) -> float | None:
    value = extra.get(name, default)
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _let_go(view: memoryview | None, region: Any) -> None:
    if view is not None:
        view.release()
    region.cleanup()
