"""Allocator of the blocks of one shared memory segment: first fit, by whole pages. Pure; kept by the side that writes.

Low places are taken first, so that of the segment no more is ever touched than was in use at a time.
"""

from __future__ import annotations

from bisect import bisect_left, insort

PAGE = 4096


class Blocks:
    """`size` is that of the segment. `touched` is how much of it has memory: what lies behind was never taken since
    `forget_touched`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.touched = 0
        self._free: list[tuple[int, int]] = [(0, size)] if size else []  # place and size, by place
        self._taken: dict[int, int] = {}

    @property
    def is_unused(self) -> bool:
        return not self._taken

    @property
    def taken_bytes(self) -> int:
        return sum(self._taken.values())

    def take(self, size: int) -> int | None:
        """The place of a block of at least so many bytes; None where there is no room."""
        wanted = max(PAGE, -(-size // PAGE) * PAGE)
        for index, (place, room) in enumerate(self._free):
            if room >= wanted:
                if room == wanted:
                    del self._free[index]
                else:
                    self._free[index] = place + wanted, room - wanted
                self._taken[place] = wanted
                self.touched = max(self.touched, place + wanted)
                return place
        return None

    def give(self, place: int) -> bool:
        """Nobody uses the block there any more; False where there is none."""
        size = self._taken.pop(place, 0)
        if not size:
            return False
        index = bisect_left(self._free, (place, 0))
        if index < len(self._free) and place + size == self._free[index][0]:
            size += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == place:
            place, before = self._free.pop(index - 1)
            size += before
        insort(self._free, (place, size))
        return True

    def forget_touched(self) -> None:
        """The memory of a segment that is not used was given back."""
        assert self.is_unused
        self.touched = 0
