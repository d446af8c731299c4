"""What makes the bytes of a row mean something else sets directories apart, and nothing else does.

The layout of vLLM's cache was part of no directory name: rows of the same size, other bytes, served in silence.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import numpy as np  # noqa: E402
from kvweir.vllm import compat  # noqa: E402
from vllm.v1.kv_offload.file_mapper import FileMapper  # noqa: E402
from vllm_driver import Driver, Shape  # noqa: E402

USUAL = [None, "LBHNC", "BLHNC", "HND"]
OTHERS = ["LBNHC", "BHLNC", "LHBNC"]


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts one driver after the other over one directory."""
    running: list[Driver] = []

    def make(**shape: Any) -> Driver:
        while running:
            running.pop().close()
        tier = {
            "type": "KvweirTier",
            "module_path": "kvweir.vllm",
            "root_dir": str(tmp_path / "kv"),
            "max_bytes": "64MiB",
        }
        running.append(Driver([tier], **{"slots": 32, "block_bytes": 4096} | shape))
        return running[-1]

    yield make
    while running:
        running.pop().close()


def hits_of(d: Driver) -> int:
    return d.ask(d.prompt(8)).hits


def test_no_row_of_another_layout_is_served(drive):
    # those of the usual layout are one family, each other is one of its own
    stored: set[str] = set()
    for layout in [*OTHERS, *USUAL, *OTHERS]:
        family = "usual" if layout in USUAL else layout
        assert hits_of(drive(kv_cache_layout=layout)) == (8 if family in stored else 0), (layout, stored)
        stored.add(family)


def test_the_old_names_are_those_of_today(drive):
    names = {}
    for layout in ["NHD", "LBNHC", "BLNHC", "HND", "LBHNC"]:
        names[layout] = drive(kv_cache_layout=layout).tiers[0]._tier.namespace_dir()
    assert names["NHD"] == names["LBNHC"] == names["BLNHC"]
    assert names["HND"] == names["LBHNC"] != names["NHD"]


@pytest.mark.parametrize("layout", USUAL)
def test_the_usual_layout_has_the_directory_of_vllms_own_tier(drive, layout):
    d = drive(kv_cache_layout=layout)
    mapper = FileMapper.from_offloading_spec(
        root_dir="/root-dir", offloading_spec=d.spec, blocks_per_file=1, parallel_agnostic=True
    )
    own = Path(str(d.tiers[0]._tier.namespace_dir())).name
    assert own == Path(f"{mapper.base_path}_r{mapper.rank}").name


# what a configuration has that changes bytes at equal size, each a little different
CHANGES = {
    "model": {"model": "driver/another"},
    "dtype": {"dtype": "float16"},
    "blocks_per_chunk": {"block_bytes": 1024, "blocks_per_chunk": 4},
    "groups": {"groups": 2},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_bytes_sets_directories_apart(drive, name):
    usual = drive().tiers[0]._tier.namespace_dir()
    assert drive(**CHANGES[name]).tiers[0]._tier.namespace_dir() != usual


def row_of(layout: str, tp: int, pp: int) -> bytes:
    """What a chunk's row holds of a model of two layers and two heads, every number of its own: worker after worker,
    and of each its tensors, as ``SharedOffloadRegion`` lays them out."""
    whole = np.arange(2 * 2 * 4 * 2, dtype=np.int8).reshape(2, 1, 2, 4, 2)
    row = b""
    for stage in np.split(whole, pp, axis=0):
        for part in np.split(stage, tp, axis=2):
            # one tensor per layer, or one of all where the block is outermost; what lies in it comes in its own order
            tensors = [part] if layout.startswith("B") else np.split(part, len(part), axis=0)
            row += b"".join(t.transpose(["LBHNC".index(axis) for axis in layout]).tobytes() for t in tensors)
    return row


def test_engines_of_other_sizes_share_a_directory_only_if_their_rows_are_the_same():
    rows: dict[str, set[bytes]] = {}
    for layout in ["LBHNC", "LBNHC", "BLHNC", "BLNHC", "BHLNC"]:
        for tp, pp in [(1, 1), (2, 1), (1, 2), (2, 2)]:
            config = Shape(kv_cache_layout=layout).config([])
            sizes = {"tp_size": tp, "pp_size": pp, "world_size": tp * pp, "is_parallelism_agnostic": True}
            parallel = dataclasses.replace(config.parallel, **sizes)
            spec = SimpleNamespace(config=dataclasses.replace(config, parallel=parallel), blocks_per_chunk=1)
            fields = compat.identity(compat.file_mapper("/root-dir", spec), spec)
            rows.setdefault(json.dumps(fields, sort_keys=True), set()).add(row_of(layout, tp, pp))
    assert [name for name, contents in rows.items() if len(contents) > 1] == []
    # a worker alone keeps the directory of vLLM's own tier, and so does one beside others whose rows are no others
    assert len(rows) < 5 * 4
