"""Shared memory of a link: one segment for each direction, written by one side and read by the other.

Segments are memfds, made by the core: they have no name in any file system, so nothing can be left behind however the
processes end, and they are sealed at their size, so that none can pull the memory away from under the other. Their size
is address space; memory is there only where something was written.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from protocol.edge_link.blocks import PAGE, Blocks
from protocol.edge_link.frames import BrokenFrame
from protocol.messages import Buffer, flat

# Of a segment so much is given back to the system at a time: less than a millisecond of work.
_RELEASED_AT_ONCE = 4 << 20
# Copying more takes a thread.
COPIED_AT_ONCE = 1 << 20
# Copied by numpy, which frees the interpreter's lock meanwhile.
_LARGE = 1 << 20


def make_segment(size: int) -> int:
    """The descriptor of a new one. Raises OSError."""
    descriptor = os.memfd_create("trioton-edge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class WrittenSegment:
    """The side that writes. What it has written stays until `give`."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.blocks = Blocks(size - size % PAGE)
        self._map = mmap.mmap(descriptor, size) if size else None
        self._view = memoryview(b"") if self._map is None else memoryview(self._map)

    def take(self, size: int) -> int | None:
        """Where so many bytes may be written; None where there is no room now."""
        return self.blocks.take(size)

    def write(self, place: int, parts: Sequence[Buffer]) -> None:
        """Write the parts one behind the other. May run in a thread."""
        for part in parts:
            data = flat(part)
            end = place + len(data)
            if len(data) > _LARGE:
                np.copyto(np.frombuffer(self._view[place:end], np.uint8), np.frombuffer(data, np.uint8))
            else:
                self._view[place:end] = data
            place = end

    def give(self, place: int) -> None:
        """The other side reads no more there. Raises BrokenFrame: it has not read there."""
        if not self.blocks.give(place):
            raise BrokenFrame(f"it releases memory at {place}, which it was not lent")

    def trim(self) -> bool:
        """Give a part of the memory that nobody uses back to the system; False where there is none."""
        blocks = self.blocks
        if self._map is None or not blocks.touched or not blocks.is_unused:
            return False
        start = (blocks.touched - 1) // _RELEASED_AT_ONCE * _RELEASED_AT_ONCE
        self._map.madvise(mmap.MADV_REMOVE, start, min(_RELEASED_AT_ONCE, len(self._map) - start))
        blocks.touched = start
        return True

    def close(self) -> None:
        """Unmapped at once, or when a thread that still writes has ended."""
        found, self._map = self._map, None
        if found is not None:
            with suppress(BufferError):
                self._view.release()
                found.close()


class ReadSegment:
    """The side that reads. `ended` is called with the place of a block once nothing holds its memory, in any thread;
    `settle` is to be called then in the link's own."""

    def __init__(self, descriptor: int, size: int, ended: Callable[[int], None]) -> None:
        self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ) if size else None
        self._memory: NDArray[np.uint8] = np.frombuffer(b"" if self._map is None else self._map, np.uint8)
        self._ended = ended
        self._lent: dict[int, tuple[int, weakref.ref[NDArray[np.uint8]]]] = {}
        self.lent_bytes = 0

    def lend(self, place: int, size: int) -> memoryview:
        """A block of the other side, which stays as it is while anything holds this or a part of it.

        Raises:
            BrokenFrame: it lies outside, or is lent already.
        """
        if place < 0 or size < 0 or place + size > len(self._memory) or place in self._lent:
            raise BrokenFrame(f"its tensors lie at {place}, {size} bytes, in a memory of {len(self._memory)} bytes")
        memory = self._memory[place : place + size]  # what is cut from it holds this, whose end is told
        self._lent[place] = size, weakref.ref(memory, lambda _: self._ended(place))
        self.lent_bytes += size
        return memory.data

    def settle(self, place: int) -> None:
        """Its end was told, and the other side is told now."""
        size, _ = self._lent.pop(place)
        self.lent_bytes -= size

    def close(self) -> None:
        """Unmapped at once, or when the last that holds a part of it has gone."""
        self._lent.clear()  # and no end is told any more
        del self._memory
        found, self._map = self._map, None
        if found is not None:
            with suppress(BufferError):
                found.close()
