"""The label of a tier in metrics: vLLM's manager numbers the secondary tiers in the order of the configuration."""

import weakref
from typing import Any

# of each spec: which places are taken, and by whom
_taken: "weakref.WeakKeyDictionary[Any, dict[int, weakref.ref[Any]]]" = weakref.WeakKeyDictionary()
# what vLLM takes out before it makes a tier
_NOT_PASSED = ("type", "module_path", "backpressure")


def label(spec: Any, tier: Any, tier_type: str, stanza: dict[str, Any]) -> str:
    """``<place>:<type>``: the first place of this very stanza that no other living tier of ``spec`` has."""
    places = [
        i
        for i, config in enumerate(_configs(spec), 1)
        if isinstance(config, dict) and config.get("type") == tier_type and _passed(config) == stanza
    ]
    try:
        taken = _taken.setdefault(spec, {})
    except TypeError:
        # a double that cannot be a key
        taken = {}
    free = [i for i in places if (holder := taken.get(i)) is None or holder() is None]
    place = next(iter(free or places), 1)
    taken[place] = weakref.ref(tier)
    return f"{place}:{tier_type}"


def _configs(spec: Any) -> list[Any]:
    own = getattr(spec, "secondary_tier_configs", None)
    if own is None:
        config = getattr(getattr(spec, "config", None), "extra_config", None) or getattr(spec, "extra_config", None)
        own = (config or {}).get("secondary_tiers")
    return own if isinstance(own, list) else []


def _passed(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in _NOT_PASSED}
