"""Directories go both ways between kvweir and vLLM's own file tier."""

import pytest


@pytest.fixture
def stock(tmp_path):
    return {"type": "fs", "root_dir": str(tmp_path / "kv"), "n_read_threads": 2, "n_write_threads": 2}


@pytest.mark.parametrize("bound", ["1GiB", None], ids=["bounded", "unbounded"])
@pytest.mark.parametrize("size", [{"block_bytes": 16384}, {"block_bytes": 5000}], ids=["16k", "padded"])
def test_a_directory_of_stock_fs_is_adopted(start, stock, ours, bound, size):
    first = start(stock, **size)
    keys = first.keys(24)
    assert first.ask(keys) == 0
    start.stop(first)
    second = start(ours(max_bytes=bound), **size)
    assert second.ask(keys) == 24
    assert second.inner.stats["chunks_loaded_verified"] == 24
    if bound:
        assert second.tier.stats()["recovered_blocks"] == 24


@pytest.mark.parametrize("bound", ["1GiB", None], ids=["bounded", "unbounded"])
@pytest.mark.parametrize("size", [{"block_bytes": 16384}, {"block_bytes": 5000}], ids=["16k", "padded"])
def test_stock_fs_reads_a_directory_of_kvweir(start, stock, ours, bound, size):
    first = start(ours(max_bytes=bound), **size)
    keys = first.keys(24)
    assert first.ask(keys) == 0
    start.stop(first)
    second = start(stock, **size)
    assert second.ask(keys) == 24
    assert second.inner.stats["chunks_loaded_verified"] == 24


def test_both_at_once_share_an_unbounded_directory(start, stock, ours):
    a, b = start(stock), start(ours(max_bytes=None, miss_ttl_s=0.05))
    one, two = a.keys(12, "one"), a.keys(12, "two")
    a.ask(one)
    b.ask(two)
    assert b.ask(one) == 12
    assert a.ask(two) == 12


def test_namespace_extra_sets_a_directory_apart(start, ours):
    first = start(ours())
    keys = first.keys(8)
    first.ask(keys)
    start.stop(first)
    second = start(ours(namespace_extra="revision 2"))
    assert second.ask(keys) == 0
    start.stop(second)
    third = start(ours())
    assert third.ask(keys) == 8
