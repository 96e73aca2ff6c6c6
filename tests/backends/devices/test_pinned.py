"""The pool of pinned memory: bounded, used again, free when the last view goes."""

from __future__ import annotations

import gc
import logging

import numpy as np
import pytest

from backends.devices.pinned import Pinned, PinnedPool
from tests.backends.devices.host_runtime import Pins

KIB = 1024


def test_blocks_are_used_again_when_all_views_are_gone() -> None:
    pins = Pins()
    pool = PinnedPool(64 * KIB, pins)
    array = pool.take(5000)
    assert array is not None
    assert (array.nbytes, pool.used_bytes, pins.made) == (5000, 8 * KIB, 1)
    array[:] = 7
    view = array[10:20].data
    address = array.ctypes.data
    del array
    assert pool.used_bytes == 8 * KIB  # the view has it
    assert bytes(view) == b"\x07" * 10
    del view
    gc.collect()
    assert (pool.used_bytes, pins.byte_size) == (0, 8 * KIB)
    again = pool.take(8 * KIB)
    assert again is not None
    assert (again.ctypes.data, pins.made) == (address, 1)


def test_the_limit_holds_and_idle_blocks_make_room() -> None:
    pins = Pins()
    pool = PinnedPool(32 * KIB, pins)
    small = [pool.take(4 * KIB) for _ in range(4)]
    assert pool.take(32 * KIB) is None  # 16 KiB are in use
    assert pool.take(64 * KIB) is None  # more than there can be
    large = pool.take(16 * KIB)
    assert large is not None
    assert pool.take(1) is None
    assert pool.used_bytes == 32 * KIB
    small.clear()
    del large
    assert pool.take(32 * KIB) is not None
    assert pins.byte_size == 32 * KIB


def test_no_pool_pins_nothing() -> None:
    pins = Pins()
    assert PinnedPool(0, pins).take(1) is None
    assert pins.made == 0


def test_a_system_that_refuses_is_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[int] = []

    def refuse(byte_size: int) -> Pinned:
        asked.append(byte_size)
        raise RuntimeError("cudaErrorMemoryAllocation: out of memory")

    pool = PinnedPool(64 * KIB, refuse)
    with caplog.at_level(logging.WARNING, "trioton.devices"):
        assert [pool.take(100), pool.take(100)] == [None, None]
    assert asked == [4096]
    assert [record.message for record in caplog.records] == [
        "host memory cannot be pinned, copies to GPUs are slower: cudaErrorMemoryAllocation: out of memory"
    ]
    assert pool.used_bytes == 0


def test_odd_sizes() -> None:
    pool = PinnedPool(64 * KIB, Pins())
    for size in (0, 1, 4096, 4097):
        array = pool.take(size)
        assert array is not None
        assert array.dtype == np.uint8
        assert array.nbytes == size
