"""Ring of the last points of several series, in a fixed number of bytes.

A plain class: it takes the time as `now`. A point belongs to a slot of `step` seconds; a later one of the same slot
replaces it. What was never written, or has been overwritten, reads as NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Ring:
    """Args:
    names: of the series.
    step: seconds from one point to the next.
    size: how many points are kept.
    """

    __slots__ = ("_slots", "_values", "names", "size", "step")

    def __init__(self, names: Sequence[str], step: float, size: int) -> None:
        self.names = tuple(names)
        self.step = step
        self.size = size
        self._slots = np.full(size, np.iinfo(np.int64).min, np.int64)
        self._values = np.full((size, len(self.names)), np.nan, np.float32)

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes + self._values.nbytes

    def write(self, values: Sequence[float | None], now: float) -> None:
        slot = self.slot(now)
        place = slot % self.size
        self._slots[place] = slot
        self._values[place] = [np.nan if value is None else value for value in values]

    def slot(self, now: float) -> int:
        return int(now // self.step)

    def slots(self, now: float) -> NDArray[np.int64]:
        """Those of all points, oldest first, up to the present one."""
        last = self.slot(now)
        return np.arange(last - self.size + 1, last + 1)

    def has(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these have a point."""
        found: NDArray[np.bool_] = self._slots[slots % self.size] == slots
        return found

    def read(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """A row of values for each slot."""
        values = self._values[slots % self.size].copy()
        values[~self.has(slots)] = np.nan
        return values
