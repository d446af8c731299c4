"""Directories are shared with stock vLLM both ways: what its ``fs`` tier wrote is served by kvweir, what kvweir wrote is
served by it; every byte compared by the rig.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
from places import RIG, rig_missing

pytest.importorskip("vllm")
if _missing := rig_missing():
    pytest.skip(_missing, allow_module_level=True)
sys.path.insert(0, str(RIG))
vllm_sim = pytest.importorskip("vllm_sim")


def stanza(kind: str, root: Path) -> dict[str, Any]:
    if kind == "stock":
        return {"type": "fs", "root_dir": str(root), "n_read_threads": 2, "n_write_threads": 2}
    ours = {"type": "KvweirFsTier", "module_path": "kvweir.vllm", "root_dir": str(root)}
    return ours if kind == "kvweir-unbounded" else {**ours, "max_bytes": "1GiB"}


def hits(tier: dict[str, Any], keys: list[Any], **kw: Any) -> int:
    engine = vllm_sim.Engine([tier], num_chunks=128, **kw)
    try:
        request = engine.add_request("r", keys)
        engine.run_until_done()
        return int(request.hits)
    finally:
        engine.shutdown()


@pytest.mark.parametrize("block", [{"block_bytes": 16384}, {"block_bytes": 65536, "blocks_per_chunk": 2}])
@pytest.mark.parametrize(
    ("writer", "reader"),
    [("stock", "kvweir"), ("stock", "kvweir-unbounded"), ("kvweir", "stock"), ("kvweir-unbounded", "stock"), ("kvweir", "kvweir")],
)
def test_what_one_wrote_the_other_serves(writer: str, reader: str, block: dict[str, int], tmp_path: Path) -> None:
    root = tmp_path / "kv"
    root.mkdir()
    keys = vllm_sim.prompt_keys(48, salt=f"{writer}{reader}{block}")
    assert hits(stanza(writer, root), keys, **block) == 0
    assert hits(stanza(reader, root), keys, **block) == len(keys)
