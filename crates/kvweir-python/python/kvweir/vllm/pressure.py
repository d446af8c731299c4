"""Back-pressure for vLLM's manager: usable as ``backpressure_cls`` and ``policy_cls`` by any tier.

With a kvweir tier the detector is fed what the device took and bounds the bytes in flight; with another tier, whose
manager calls ``update``, it sees what vLLM's own detector sees.
"""

import time
from typing import Any

from kvweir import Detector, InvalidError, Policy
from kvweir._kvweir import read_backpressure
from kvweir.stanza import tell
from kvweir.vllm.compat import DetectorBase, PolicyBase

MIB = 1 << 20


class _CountingPolicy(PolicyBase):
    """Counts what is dropped; the engine's policy decides."""

    def __init__(self, policy: Policy) -> None:
        self._native = policy
        self._dropped = (0, 0)

    def should_store(self, detector: Any) -> bool:
        pressure = detector.is_under_pressure()
        try:
            ema, high = detector.store_latency_ema, detector._high
        except AttributeError:
            # a detector without an EMA: all that is known is the pressure
            return not pressure
        return self._native.admit(ema, high, pressure)

    def on_store_skipped(self, num_blocks: int) -> None:
        stores, blocks = self._dropped
        self._dropped = (stores + 1, blocks + num_blocks)

    def pop_stores_dropped(self) -> tuple[int, int]:
        dropped, self._dropped = self._dropped, (0, 0)
        return dropped

    def reset(self) -> None:
        self._native.reset()
        self._dropped = (0, 0)


class KvweirDropPolicy(_CountingPolicy):
    """Drops every store under pressure."""

    def __init__(self) -> None:
        super().__init__(Policy(False))


class KvweirThrottledDropPolicy(_CountingPolicy):
    """Drops a share of the stores that grows with the pressure."""

    def __init__(self, ramp_factor: float = 2.0) -> None:
        super().__init__(Policy(True, ramp_factor))
        self.ramp_factor = ramp_factor


class KvweirDetector(DetectorBase):
    """EMA of store latency in seconds per MiB, and a bound on the bytes in flight.

    ``max_inflight_bytes`` is in force with kvweir tiers only: they tell what is in flight.

    A subclass of vLLM's detector so that vLLM's own policies accept it; all state and every decision are the engine's,
    and nothing of the parent's is used but its constants.
    """

    @classmethod
    def default_config(cls, tier_type: str, *, locality: str | None = None) -> dict[str, Any]:
        """The water marks and failure threshold for a tier type; kvweir's own are storage."""
        kind = "fs" if "kvweir" in tier_type.lower() else tier_type
        try:
            high, low, failures = Detector.defaults(kind, locality)
        except (InvalidError, TypeError, UnicodeError):
            # of a wrong locality the tier tells
            high, low, failures = Detector.defaults(kind)
        config: dict[str, Any] = {"high_water_s": high, "low_water_s": low}
        if failures is not None:
            config["failure_threshold"] = failures
        return config

    def __init__(
        self, high_water_s: Any = None, low_water_s: Any = None, *, policy: Any = None, **settings: Any
    ) -> None:
        self._policy = policy if policy is not None else KvweirThrottledDropPolicy()
        drops = isinstance(self._policy, KvweirDropPolicy) or type(self._policy).__name__ == "DropStorePolicy"
        written = {"high_water_s": high_water_s, "low_water_s": low_water_s, **settings}
        known, mistakes = read_backpressure(written, drops)
        if mistakes:
            # vLLM's own detector raises these too
            raise ValueError(tell(mistakes, "backpressure"))
        self.max_inflight_bytes: int | None = known.pop("max_inflight_bytes")
        self.settings: dict[str, Any] = known
        self._native = Detector(**known)
        self._high: float = known["high_water_s"]
        self.inflight_bytes = 0
        self.inflight_refused = 0
        self._block_bytes = 0
        self._fed_by_device = False

    # --- with a kvweir tier -------------------------------------------------------------------------------------

    def attach(self, block_bytes: int, max_inflight_bytes: int) -> None:
        """A kvweir tier of ``block_bytes``-byte blocks will feed this detector."""
        self._fed_by_device = True
        self._block_bytes = block_bytes
        if self.max_inflight_bytes is None:
            self.max_inflight_bytes = max_inflight_bytes

    def begin(self, num_bytes: int) -> None:
        """A store job of ``num_bytes`` was submitted."""
        self.inflight_bytes += num_bytes

    def end(self, num_bytes: int, device_s: float, written: int, failed: bool) -> None:
        """That job ended: the device took ``device_s`` for ``written`` bytes, or failed."""
        self.inflight_bytes = max(0, self.inflight_bytes - num_bytes)
        now = time.monotonic()
        if failed:
            # also when some blocks were written: a dying disk still takes a few
            self._native.failed(now)
        elif written > 0:
            if self.inflight_bytes == 0:
                # nothing waits: the device kept up, however long it took
                device_s = min(device_s, self._high * written / MIB)
            self._native.completed(now, device_s, written)

    # --- what vLLM's manager calls ------------------------------------------------------------------------------

    @property
    def policy(self) -> Any:
        """Decides what is dropped under pressure."""
        return self._policy

    def update(self, submit_time: float, num_bytes: int) -> None:
        """A store completed; poll time counts only where no device told its own."""
        if num_bytes > 0 and not self._fed_by_device:
            self.on_store_completed(time.monotonic() - submit_time, num_bytes)

    def on_store_completed(self, elapsed_s: float, num_bytes: int) -> None:
        """A store of ``num_bytes`` took ``elapsed_s``."""
        self._native.completed(time.monotonic(), elapsed_s, num_bytes)

    def on_store_failed(self) -> None:
        """A store failed."""
        if not self._fed_by_device:
            self._native.failed(time.monotonic())

    def is_under_pressure(self) -> bool:
        """Whether stores are being shed."""
        return self._native.is_under_pressure(time.monotonic())

    def is_healthy(self) -> bool:
        """Whether stores pass without the policy being asked."""
        return self._native.is_healthy()

    def should_store(self, num_blocks: int) -> bool:
        """Whether a job of ``num_blocks`` blocks may go to the tier."""
        limit = self.max_inflight_bytes
        if self._fed_by_device and limit is not None:
            # a job larger than the limit goes alone: the scheduler cannot make it smaller
            if self.inflight_bytes > 0 and self.inflight_bytes + num_blocks * self._block_bytes > limit:
                self.inflight_refused += num_blocks
                self._policy.on_store_skipped(num_blocks)
                return False
        asked = self._native.ask(time.monotonic())
        if asked == 0 or asked == 2 and self._policy.should_store(self):
            return True
        self._policy.on_store_skipped(num_blocks)
        return False

    def reset(self) -> None:
        """Forgets everything observed; bytes in flight stay until their jobs end."""
        self._native.reset()
        self._policy.reset()

    @property
    def store_latency_ema(self) -> float:
        """Seconds per MiB."""
        return self._native.ema

    @property
    def stats(self) -> dict[str, float]:
        """Numbers for vLLM's metrics and log lines."""
        return {**self._native.stats(), "inflight_bytes": float(self.inflight_bytes)}


class InflightBound(KvweirDetector):
    """What a kvweir tier uses when the user configured no back-pressure: the bound on bytes in flight alone."""

    def __init__(self) -> None:
        super().__init__(high_water_s=1e9, low_water_s=0.0, cooldown_s=0.0)
