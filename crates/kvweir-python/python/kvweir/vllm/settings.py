"""The settings of a tier's stanza: those of stock ``fs`` with the same meaning, and kvweir's own."""

import difflib
from dataclasses import dataclass, fields
from typing import Any

from kvweir import InvalidError, parse_size

ALIASES = {"max_cache_size_bytes": "max_bytes", "capacity_bytes": "max_bytes"}
SIZES = ("max_bytes", "min_free_bytes", "max_inflight_bytes")
POLICIES = ("lru", "arc", "s3fifo")
BOUNCES = ("auto", "always", "never")
LAYOUTS = ("auto", "fs", "pack")
ENGINES = ("threads", "io_uring")


@dataclass(frozen=True)
class FsSettings:
    """What a user may write in the stanza of a ``KvweirTier``."""

    root_dir: str
    n_read_threads: int | None = None
    n_write_threads: int | None = None
    enable_kv_events: bool = False
    locality: str | None = None
    max_bytes: int | None = None
    min_free_bytes: int | None = None
    policy: str = "lru"
    namespace_extra: str = ""
    verify: bool = True
    pin_ttl_s: float = 600.0
    miss_ttl_s: float = 1.0
    io_timeout_s: float = 30.0
    bounce: str = "auto"
    read_only: bool = False
    layout: str = "auto"
    engine: str = "threads"
    max_inflight_bytes: int | None = None

    @classmethod
    def read(cls, stanza: dict[str, Any]) -> "FsSettings":
        """Checks a stanza; every fault names the setting, its value and what is allowed."""
        names = [f.name for f in fields(cls)]
        values: dict[str, Any] = {}
        for key, value in stanza.items():
            name = ALIASES.get(key, key)
            if name not in names:
                near = difflib.get_close_matches(key, [*names, *ALIASES], n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(names)}"
                raise InvalidError(f"unknown setting {key!r} of the kvweir tier{hint}")
            if name in values:
                raise InvalidError(f"{name!r} is given twice (as {key!r} too)")
            values[name] = value
        if not isinstance(values.get("root_dir"), str) or not values["root_dir"]:
            raise InvalidError(f"root_dir = {values.get('root_dir')!r}: name a directory")
        for name in SIZES:
            if values.get(name) is not None:
                values[name] = _size(name, values[name])
        for name in ("n_read_threads", "n_write_threads"):
            _check(name, values.get(name), lambda v: v is None or _is_int(v) and 1 <= v <= 256, "1 to 256 threads")
        for name in ("pin_ttl_s", "miss_ttl_s", "io_timeout_s"):
            value = values.get(name, 1)
            _check(name, value, _is_time, "a number of seconds, zero or more,")
        for name in ("enable_kv_events", "verify", "read_only"):
            _check(name, values.get(name, False), lambda v: isinstance(v, bool), "true or false")
        _check("policy", values.get("policy", "lru"), lambda v: v in POLICIES, "lru, arc or s3fifo")
        _check("bounce", values.get("bounce", "auto"), lambda v: v in BOUNCES, "auto, always or never")
        _check("layout", values.get("layout", "auto"), lambda v: v in LAYOUTS, "auto, fs or pack")
        _check("engine", values.get("engine", "threads"), lambda v: v in ENGINES, "threads or io_uring")
        extra = values.get("namespace_extra", "")
        _check("namespace_extra", extra, lambda v: isinstance(v, str), "a text")
        word = values.get("locality")
        _check(
            "locality",
            word,
            lambda v: v is None or isinstance(v, str) and v.upper() in ("LOCAL", "REMOTE"),
            "LOCAL or REMOTE",
        )
        return cls(**values)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18


def _size(name: str, value: Any) -> int:
    text = value if isinstance(value, str) else str(value) if _is_int(value) else None
    try:
        if text is None:
            raise ValueError("is neither a number of bytes nor a text")
        size = parse_size(text)
    except ValueError as e:
        raise InvalidError(f'{name} = {value!r}: {e}; write 1073741824 or "500GiB"') from None
    _check(name, value, lambda _: size > 0, "more than zero bytes")
    return size


def _check(name: str, value: Any, good: Any, allowed: str) -> None:
    if not good(value):
        raise InvalidError(f"{name} = {value!r}: {allowed} is allowed")
