"""Pinned host memory pool of one server (`--pinned-memory-pool-byte-size`).

A device copies from and to pinned memory beside its other work; pageable memory it copies through a buffer of the
driver's, and the thread waits. Pinning takes long, so what was pinned stays so and is used again.
"""

from __future__ import annotations

import ctypes
import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger("trioton.devices")

DEFAULT_PINNED_BYTES = 256 << 20
_LEAST = 4096  # bytes; smaller blocks are not told apart


class Pinned(Protocol):
    """Pinned memory. It is unpinned when it is dropped."""

    @property
    def ptr(self) -> int: ...


class PinnedPool:
    """At most `limit` bytes are pinned. Every method may be called from any thread, and where memory is let go of."""

    def __init__(self, limit: int, pin: Callable[[int], Pinned]) -> None:
        self.limit = limit
        self._pin = pin
        self._lock = threading.Lock()
        self._idle: dict[int, list[Pinned]] = {}
        self._pinned_bytes = 0
        self._used_bytes = 0
        self._is_refused = False
        # Blocks come back wherever their last view goes, perhaps in the midst of `take`: they wait here for the next.
        self._returned: queue.SimpleQueue[tuple[int, Pinned]] = queue.SimpleQueue()

    @property
    def used_bytes(self) -> int:
        """What is in use now, in whole blocks."""
        with self._lock:
            self._take_back()
            return self._used_bytes

    def take(self, byte_size: int) -> NDArray[np.uint8] | None:
        """So many bytes of pinned memory, free again when the array and all views of it are gone; None where the pool
        has no room for them, or the system has refused to pin more."""
        size = _block_size(byte_size)
        if size > self.limit:
            return None
        unpinned: list[Pinned] | None = None
        with self._lock:
            self._take_back()
            idle = self._idle.get(size)
            block = idle.pop() if idle else None
            if block is None:
                unpinned = None if self._is_refused else self._make_room(size)
                if unpinned is None:
                    return None
                self._pinned_bytes += size
            self._used_bytes += size
        if block is None:
            unpinned = None  # before more is pinned
            block = self._pinned(size)
            if block is None:
                return None
        memory = (ctypes.c_uint8 * byte_size).from_address(block.ptr)
        # Every view holds `memory`, and that its lease.
        memory.lease = _Lease(self._returned, size, block)  # type: ignore[attr-defined]  # ctypes takes any attribute
        return np.frombuffer(memoryview(memory), np.uint8)

    def _pinned(self, size: int) -> Pinned | None:
        """A new block, whose size is counted already."""
        try:
            return self._pin(size)
        except Exception as error:  # whatever the library raises: the copies are then slower, and no request fails
            logger.warning("host memory cannot be pinned, copies to GPUs are slower: %s", error)
            with self._lock:
                self._is_refused = True
                self._pinned_bytes -= size
                self._used_bytes -= size
            return None

    def _take_back(self) -> None:
        while not self._returned.empty():
            size, block = self._returned.get()
            self._idle.setdefault(size, []).append(block)
            self._used_bytes -= size

    def _make_room(self, size: int) -> list[Pinned] | None:
        """Idle blocks of other sizes to be unpinned; None where not enough of them are idle."""
        missing = self._pinned_bytes + size - self.limit
        if missing > sum(each * len(blocks) for each, blocks in self._idle.items()):
            return None
        unpinned: list[Pinned] = []
        for each in sorted(self._idle, reverse=True):
            while missing > 0 and self._idle[each]:
                unpinned.append(self._idle[each].pop())
                self._pinned_bytes -= each
                missing -= each
        return unpinned


class _Lease:
    """A block's way back."""

    __slots__ = ("_block", "_returned", "_size")

    def __init__(self, returned: queue.SimpleQueue[tuple[int, Pinned]], size: int, block: Pinned) -> None:
        self._returned = returned
        self._size = size
        self._block = block

    def __del__(self) -> None:
        self._returned.put((self._size, self._block))


def _block_size(byte_size: int) -> int:
    """Blocks are powers of two, so that batches of different sizes use the same ones."""
    return max(_LEAST, 1 << (byte_size - 1).bit_length()) if byte_size > 1 else _LEAST
