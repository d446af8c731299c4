"""The caller's memory: taken without a copy, held until shutdown, refused if it cannot be used."""

import array
import gc
import mmap

import pytest
from blocks import HIT, IDENTITY, Memory, Request, content, key, open_tier, store, wait

from kvweir import FsTier, KvweirError


def test_a_load_puts_the_stored_bytes_into_the_same_memory(tmp_path):
    memory = Memory()
    tier = open_tier(memory, tmp_path)
    assert all(store(tier, memory, [1, 2, 3])[2])
    for slot in range(memory.rows):
        memory.fill(slot, b"\0" * memory.row)
    assert tier.lookup(key(2), Request("r")) == HIT
    tier.submit_load(2, "r", [key(2)], [9])
    job, load, good, faults, moved, device_s, queued_s = wait(tier)[0]
    assert (job, load, good, faults) == (2, True, [True], 0)
    assert moved >= memory.row
    assert device_s > 0 and queued_s >= 0
    assert memory.read(9) == content(2, memory.row)
    assert memory.read(8) == b"\0" * memory.row == memory.read(10)
    tier.shutdown()


def test_a_bytearray_serves_as_memory(tmp_path):
    data = bytearray(8 * 4096)
    view = memoryview(data).cast("b", shape=[8, 4096])
    tier = FsTier(view, str(tmp_path), IDENTITY, 0, (0, 1, 2), max_bytes=1 << 20)
    data[:4096] = content(7, 4096)
    tier.submit_store(1, "w", [key(7)], [0])
    assert wait(tier)[0][2] == [True]
    tier.submit_load(2, "w", [key(7)], [5])
    assert wait(tier)[0][2] == [True]
    assert data[5 * 4096 : 6 * 4096] == content(7, 4096)
    tier.shutdown()


def test_the_memory_is_held_until_shutdown_and_let_go_then(tmp_path):
    memory = Memory()
    tier = open_tier(memory, tmp_path)
    gc.collect()
    with pytest.raises(BufferError):
        memory.map.close()
    tier.shutdown()
    memory.map.close()


def test_a_tier_that_is_dropped_lets_go_of_the_memory(tmp_path):
    memory = Memory()
    tier = open_tier(memory, tmp_path)
    store(tier, memory, [1])
    del tier
    gc.collect()
    memory.map.close()


def test_a_tier_that_could_not_open_does_not_hold_the_memory(tmp_path):
    memory = Memory()
    with pytest.raises(KvweirError):
        open_tier(memory, tmp_path, policy="fifo")
    memory.map.close()


def one_dimension() -> memoryview:
    return memoryview(bytearray(8192)).cast("b")


def three_dimensions() -> memoryview:
    return memoryview(bytearray(8192)).cast("b", shape=[2, 2, 2048])


def read_only() -> memoryview:
    return memoryview(bytes(8192)).cast("b", shape=[2, 4096])


def wide_items() -> memoryview:
    return memoryview(array.array("q", [0] * 1024)).cast("B").cast("q", shape=[2, 512])


def with_gaps() -> memoryview:
    return memoryview(bytearray(16384)).cast("b", shape=[4, 4096])[::2]


@pytest.mark.parametrize("view", [one_dimension, three_dimensions, read_only, wide_items, with_gaps])
def test_a_view_that_cannot_be_used_is_refused(tmp_path, view):
    with pytest.raises((BufferError, KvweirError)):
        FsTier(view(), str(tmp_path), IDENTITY, 0, (0, 1, 2), max_bytes=1 << 20)


@pytest.mark.parametrize("thing", [None, 1, "text", [1, 2], object()])
def test_what_is_no_buffer_is_refused(tmp_path, thing):
    with pytest.raises((TypeError, BufferError)):
        FsTier(thing, str(tmp_path), IDENTITY, 0, (0, 1, 2), max_bytes=1 << 20)


def test_a_file_mapping_serves_as_memory(tmp_path):
    path = tmp_path / "region"
    path.write_bytes(b"\0" * 4 * 4096)
    with path.open("r+b") as f:
        region = mmap.mmap(f.fileno(), 4 * 4096)
    view = memoryview(region).cast("b", shape=[4, 4096])
    tier = FsTier(view, str(tmp_path / "root"), IDENTITY, 0, (0, 1, 2), max_bytes=1 << 20)
    view[1, 0] = 42
    tier.submit_store(1, "w", [key(1)], [1])
    assert wait(tier)[0][2] == [True]
    tier.submit_load(2, "w", [key(1)], [3])
    assert wait(tier)[0][2] == [True]
    assert view[3, 0] == 42
    tier.shutdown()
    view.release()
    region.close()
