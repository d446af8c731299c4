"""Settings at the terminal: all mistakes in one line of the log, before anything is raised.

Needs no vLLM: the plugin looks at the configuration before the engine is started, the tiers look again when they open, and
``python -m kvweir.stanza FILE|-`` looks at any time, as ``kvweir doctor --stanza`` does.
"""

import json
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from kvweir._kvweir import InvalidError, check_stanza, check_tier

logger = logging.getLogger("vllm.kvweir")

_FIELDS = ("kv_connector", "kv_role", "kv_connector_extra_config")


def tell(mistakes: Iterable[str], where: str) -> str:
    """Writes the mistakes into the log, as one line; returns it."""
    all_ = list(mistakes)
    count = "1 mistake" if len(all_) == 1 else f"{len(all_)} mistakes"
    numbered = all_ if len(all_) == 1 else [f"({i}) {m}" for i, m in enumerate(all_, 1)]
    # what comes from a user may hold what a terminal cannot show
    line = f"kvweir: {count} in {where}: {'; '.join(numbered)}".encode("utf-8", "backslashreplace").decode()
    if logger.hasHandlers():
        logger.error("%s", line)
    else:
        # vLLM 0.33 configures its log after its engine's configuration
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s [kvweir] %(message)s", "%m-%d %H:%M:%S"))
        logger.addHandler(handler)
        try:
            logger.error("%s", line)
        finally:
            logger.removeHandler(handler)
    return line


def refuse(mistakes: Iterable[str], where: str) -> None:
    """Tells the mistakes, if there are any, and raises."""
    if all_ := list(mistakes):
        raise InvalidError(tell(all_, where))


def place_mistake(root: str) -> str | None:
    """Why a tier cannot open ``root``, as far as a look at the directories tells."""
    if not root or os.path.isdir(root):
        return None
    if os.path.lexists(root):
        return f"root_dir = {root!r}: it is no directory"
    parent = os.path.dirname(os.path.abspath(root))
    if not os.path.isdir(parent):
        return f"root_dir = {root!r}: {parent} does not exist; make it first, or mount the disk"
    return None


def check_before_start(config: Any, here: bool = True) -> None:
    """Looks at a ``--kv-transfer-config`` and refuses it if a tier of ours in it cannot start.

    ``here``: the engine will run on this machine, so its directories can be looked at.
    """
    if config is None:
        return
    if not isinstance(config, dict):
        known = {name: getattr(config, name, None) for name in _FIELDS}
        config = {name: value for name, value in known.items() if value is not None}
    mistakes, _, tiers, roots, manager = check_stanza(config)
    if tiers == 0 and not manager:
        # vLLM's own affair
        return
    if here:
        for at, root in roots:
            if mistake := place_mistake(root):
                mistakes.append(f"{at}: {mistake}")
    refuse(mistakes, "the KV transfer configuration")


def check_one(config: Any) -> None:
    """Looks at one tier's part of it, if it is one."""
    if isinstance(config, dict) and "type" in config:
        mistakes, *_ = check_tier(config)
        refuse(mistakes, f"the stanza of tier {config['type']!r}")


def main(arguments: Sequence[str]) -> int:
    """Says what is wrong in a file, or in what comes in: 0 nothing, 1 something, 2 it could not be read."""
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        print("usage: python -m kvweir.stanza FILE|-    checks the JSON of --kv-transfer-config")
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    try:
        if arguments[0] == "-":
            config = json.load(sys.stdin)
        else:
            with open(arguments[0], encoding="utf-8") as file:
                config = json.load(file)
    except (OSError, ValueError, RecursionError) as e:
        print(f"error: {arguments[0]} is not read as JSON: {e}", file=sys.stderr)
        return 2
    mistakes, notes, tiers, roots, _ = check_stanza(config)
    mistakes += [f"{at}: {mistake}" for at, root in roots if (mistake := place_mistake(root))]
    lines = [f"bad   {m}" for m in mistakes] + [f"note  {n}" for n in notes]
    if not mistakes:
        lines.append(f"ok    tiers of kvweir: {tiers}, every setting")
    print("\n".join(lines).encode("utf-8", "backslashreplace").decode())
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
