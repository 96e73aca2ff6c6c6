"""Live times: how long live requests take at a model, and what part of them would be late if they took longer. Pure.

Kept is what they would have taken without jobs. A live request is late when it takes more than `LIMIT` times the p99 of
that, and `LEAST_SECONDS` more: as long as few are, their p99 with jobs is below it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque

from actors.jobs.pace import ROW_SECONDS

LIMIT = 1.15
# What the server itself does with a row may take as long: less is not seen.
LEAST_SECONDS = ROW_SECONDS
# So many of the newest are kept, and of those that are older than that only as many as are enough.
MOST_SAMPLES = 2048
ENOUGH = 32
KEEP_SECONDS = 30.0
# Where each of so many takes less than this part of what is usual, the older ones are forgotten.
NEWEST = 64
SHORTER = 0.7
_QUANTILE = 0.99
# They are sorted anew when so many have come, or this part of them.
_SORTED_EVERY = 16


class LiveTimes:
    """Of one model. Times are in seconds of one clock.

    Attributes:
        limit: beyond that one is late.
    """

    __slots__ = ("_in_time", "_is_sorted_in", "_samples", "_sorted", "limit")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=MOST_SAMPLES)
        self._sorted: list[float] = []
        self._is_sorted_in = 0
        self._in_time = 0
        self.limit = math.inf

    def add(self, seconds: float, now: float) -> None:
        """One was answered that would have taken so long."""
        self._samples.append((now, seconds))
        self._is_sorted_in -= 1
        if self._is_sorted_in > 0 and len(self._sorted) >= ENOUGH:
            return
        self._forget(now)
        self._sorted = sorted(seconds for _, seconds in self._samples)
        self._is_sorted_in = max(len(self._sorted) // _SORTED_EVERY, _SORTED_EVERY)
        if self.is_known:
            p99 = self._sorted[math.ceil(_QUANTILE * len(self._sorted)) - 1]
            self.limit = max(LIMIT * p99, p99 + LEAST_SECONDS)
            self._in_time = bisect_right(self._sorted, self.limit)

    def _forget(self, now: float) -> None:
        """What is too old; and all but the newest, if these are much shorter."""
        if self.is_known and len(self._samples) > NEWEST:
            newest = [self._samples[-1 - place] for place in range(NEWEST)]
            if max(seconds for _, seconds in newest) < SHORTER * self.median:
                self._samples = deque(reversed(newest), maxlen=MOST_SAMPLES)
        while len(self._samples) > ENOUGH and now - self._samples[0][0] > KEEP_SECONDS:
            self._samples.popleft()

    @property
    def is_known(self) -> bool:
        """Whether there have been enough to tell anything; the rest may be asked only then."""
        return len(self._sorted) >= ENOUGH

    @property
    def median(self) -> float:
        return self._sorted[len(self._sorted) // 2]

    @property
    def part_beyond(self) -> float:
        """Which part is beyond the limit by itself."""
        return 1 - self._in_time / len(self._sorted)

    def part_late(self, added: float) -> float:
        """Of those that are in time by themselves, which part would be late if each took so many seconds more."""
        if added <= 0:
            return 0.0
        return (self._in_time - bisect_right(self._sorted, self.limit - added)) / len(self._sorted)
