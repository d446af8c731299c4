"""The settings of a tier's stanza: those of stock ``fs`` with the same meaning, and kvweir's own.

What is allowed, the defaults and the words for mistakes are the engine's (``kvweir doctor --stanza`` says the same).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvweir import InvalidError
from kvweir._kvweir import read_tier


@dataclass(frozen=True)
class FsSettings:
    """What a user may write in the stanza of a ``KvweirTier``, with nothing left out."""

    root_dir: str
    n_read_threads: int | None
    n_write_threads: int | None
    enable_kv_events: bool
    locality: str | None
    max_bytes: int | None
    min_free_bytes: int | None
    policy: str
    namespace_extra: str
    verify: bool
    pin_ttl_s: float
    miss_ttl_s: float
    io_timeout_s: float
    bounce: str
    read_only: bool
    layout: str
    engine: str
    max_inflight_bytes: int | None
    promote_share: float
    promote_wait_s: float

    @classmethod
    def look(
        cls, stanza: Mapping[str, Any], layout: str | None = None, block_bytes: int | None = None
    ) -> tuple["FsSettings", list[str]]:
        """The settings, and every mistake in them: setting, value and what is allowed. What is wrong has its default.

        ``layout``: the only one that the tier has. ``block_bytes``: the length of its blocks; without it settings are
        looked at one by one.
        """
        settings, mistakes = read_tier(dict(stanza), layout, block_bytes)
        if isinstance(root := stanza.get("root_dir"), str):
            # as it is: a path may be no Unicode
            settings["root_dir"] = root
        return cls(**settings), mistakes

    @classmethod
    def read(cls, stanza: Mapping[str, Any]) -> "FsSettings":
        """The settings; raises with all mistakes."""
        settings, mistakes = cls.look(stanza)
        if mistakes:
            raise InvalidError("; ".join(mistakes))
        return settings
