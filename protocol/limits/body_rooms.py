"""Body rooms: memory for large bodies, all of it reserved when their size is known, so that they are received in place.

The system gives a room's pages only as they are filled, but its addresses at once, and of those it has 128 TiB for a
process, in 65,530 mappings. A client pays five bytes for a call that announces 2 GiB. So large rooms are counted: who
gets none keeps the parts as they come, and joins them.
"""

from __future__ import annotations

import weakref

import numpy as np

# A room of less comes from the heap, or beside others in one mapping.
UNCOUNTED_SIZE = 1 << 20
# Two mappings each, since numpy asks for huge pages behind the first one.
MOST_ROOMS = 4096
MOST_BYTES = 1 << 44


class BodyRooms:
    """Memory for the large bodies of one server. It counts until nothing refers to it: a model may have tensors of it.

    Attributes:
        count: how many large ones there are.
        reserved: their bytes.
    """

    __slots__ = ("__weakref__", "count", "reserved")

    def __init__(self) -> None:
        self.count = 0
        self.reserved = 0

    def make(self, size: int) -> memoryview | None:
        """Memory that is not cleared; None where there is none, or too much is reserved already."""
        is_large = size >= UNCOUNTED_SIZE
        if is_large and (self.count >= MOST_ROOMS or self.reserved + size > MOST_BYTES):
            return None
        try:
            memory = np.empty(size, np.uint8)
        except MemoryError:
            return None
        if is_large:
            self.count += 1
            self.reserved += size
            weakref.finalize(memory, self._free, size)
        return memory.data

    def _free(self, size: int) -> None:
        self.count -= 1
        self.reserved -= size
