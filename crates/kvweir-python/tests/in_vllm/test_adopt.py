"""Directories are shared with stock vLLM both ways: what its ``fs`` tier wrote is served by kvweir, what kvweir wrote is
served by it; every byte compared.
"""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm_driver import Driver, prompt  # noqa: E402


def stanza(kind: str, root: Path) -> dict[str, Any]:
    if kind == "stock":
        return {"type": "fs", "root_dir": str(root), "n_read_threads": 2, "n_write_threads": 2}
    ours = {"type": "KvweirFsTier", "module_path": "kvweir.vllm", "root_dir": str(root)}
    return ours if kind == "kvweir-unbounded" else {**ours, "max_bytes": "1GiB"}


def hits(tier: dict[str, Any], keys: list[Any], **shape: Any) -> int | None:
    with Driver([tier], slots=128, **shape) as engine:
        return engine.ask(keys).hits


@pytest.mark.parametrize("block", [{"block_bytes": 16384}, {"block_bytes": 65536, "blocks_per_chunk": 2}])
@pytest.mark.parametrize(
    ("writer", "reader"),
    [("stock", "kvweir"), ("stock", "kvweir-unbounded"), ("kvweir", "stock"), ("kvweir-unbounded", "stock"), ("kvweir", "kvweir")],
)
def test_what_one_wrote_the_other_serves(writer: str, reader: str, block: dict[str, int], tmp_path: Path) -> None:
    root = tmp_path / "kv"
    root.mkdir()
    keys = prompt(48, f"{writer}{reader}{block}")
    assert hits(stanza(writer, root), keys, **block) == 0
    assert hits(stanza(reader, root), keys, **block) == len(keys)
