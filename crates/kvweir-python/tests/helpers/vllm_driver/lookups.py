"""Keys of prompts, and how many chunks of one a scheduler may load: vLLM's search over KV groups."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, make_offload_key

PENDING = (LookupResult.HIT_PENDING, LookupResult.RETRY)


def prompt(chunks: int, salt: str = "p", shared: int = 0) -> list[Any]:
    """The keys in group 0. A key speaks for all before it: prompts of two salts share ``shared`` leading keys."""
    keys, before = [], b""
    for i in range(chunks):
        words = f"shared {i}" if i < shared else f"{salt} {i}"
        before = hashlib.sha256(before + words.encode()).digest()
        keys.append(make_offload_key(before, 0))
    return keys


def leading(ask: Callable[[Any], LookupResult], keys: Sequence[Any]) -> int | None:
    """How many keys from the first on are there; None if that is not known yet. Stops at a miss, and only there."""
    hits, later = 0, False
    for key in keys:
        answer = ask(key)
        if answer is LookupResult.MISS:
            break
        later |= answer in PENDING
        hits += answer is not LookupResult.RETRY
    return None if later else hits


def last_window(ask: Callable[[Any], LookupResult], keys: Sequence[Any], window: int) -> int | None:
    """Where the last run of ``window`` hits ends, searched from the end; what the first keys give if there is none."""
    run, unsure, pending = 0, False, False
    for i in reversed(range(len(keys))):
        answer = ask(keys[i])
        if answer in (LookupResult.HIT, LookupResult.HIT_PENDING):
            pending |= answer is LookupResult.HIT_PENDING
            run += 1
        else:
            unsure |= answer is LookupResult.RETRY
            run, pending = 0, False
        if run == window:
            return None if unsure or pending else i + window
    return None if unsure or pending else run


def loadable(
    ask: Callable[[Any], LookupResult], keys: list[list[Any]], windows: Sequence[int | None]
) -> int | None:
    """How many leading chunks all groups together can serve; None if the request must be asked for again.

    Groups with attention over all come first, then windows, the widest first. Each may shorten what the others have to
    serve; what was put off for chunks that no longer matter is asked again.
    """
    full = [g for g, w in enumerate(windows) if w is None]
    sliding = sorted((g for g, w in enumerate(windows) if w is not None), key=lambda g: -(windows[g] or 0))
    limit, agreed, later = len(keys[0]), 0, False
    turn = [*full, *sliding]
    while turn:
        following: list[int] = []
        window_seen = False
        for group in turn:
            if limit == 0:
                return 0
            window = windows[group]
            asked = keys[group][:limit]
            found = leading(ask, asked) if window is None else last_window(ask, asked, window)
            if found == 0:
                return 0
            if found is None:
                later = True
            else:
                limit = min(limit, found)
            if limit < agreed:
                if later:
                    later, following = False, [*full, *sliding]
                elif window_seen and not following:
                    following = list(sliding)
            window_seen |= window is not None
            agreed = limit
        turn = following
    return None if later else limit


def needed(keys: list[list[Any]], windows: Sequence[int | None], chunks: int) -> list[Any]:
    """The keys to load for so many leading chunks, group after group."""
    out: list[Any] = []
    for of_group, window in zip(keys, windows, strict=True):
        out += of_group[:chunks] if window is None else of_group[max(0, chunks - window) : chunks]
    return out
