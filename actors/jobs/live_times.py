"""Live times: how long live requests take at a model, and what part of them would be late if they took longer. Pure.

Kept is what they would have taken without jobs. A live request is late when it takes more than `LIMIT` times the p99 of
that, and `LEAST_SECONDS` more: as long as few are, their p99 with jobs is below it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque

LIMIT = 1.15
# Less is not seen, beside what the edge and the network add to a request.
LEAST_SECONDS = 0.00005
# So many of the newest are kept, and of those that are older than that only as many as are enough.
MOST_SAMPLES = 2048
ENOUGH = 32
# Of those that come so quickly that ENOUGH have come before this has passed, so many.
ENOUGH_SECONDS = 0.25
MANY = 1024
KEEP_SECONDS = 30.0
# Where each of so many takes less than this part of what is usual, the older ones are forgotten.
NEWEST = 64
SHORTER = 0.7
_BEYOND = 0.01
# How often it is looked for those that say nothing any more, in requests.
_FORGETS_EVERY = 64


class LiveTimes:
    """Of one model. Times are in seconds of one clock.

    Attributes:
        limit: beyond that one is late.
    """

    __slots__ = ("_forgets_in", "_in_time", "_is_known", "_samples", "_sorted", "limit")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        # The same seconds. Kept sorted: to sort them anew takes as long as several live requests.
        self._sorted: list[float] = []
        self._forgets_in = 0
        self._in_time = 0
        self._is_known = False
        self.limit = math.inf

    def add(self, seconds: float, now: float) -> None:
        """One was answered that would have taken so long."""
        self._samples.append((now, seconds))
        insort(self._sorted, seconds)
        if len(self._samples) > MOST_SAMPLES:
            self._drop_oldest()
        self._forgets_in -= 1
        if self._forgets_in < 0:
            self._forgets_in = _FORGETS_EVERY
            self._forget(now)
        self._is_known = self._is_known or self._is_enough(now)
        if self._is_known:
            # As many more as it may be by chance: of few samples the p99 says little, and less than it is harms nobody.
            beyond = _BEYOND * len(self._sorted)
            p99 = self._sorted[-math.ceil(beyond + math.sqrt(beyond))]
            self.limit = max(LIMIT * p99, p99 + LEAST_SECONDS)
            self._in_time = bisect_right(self._sorted, self.limit)

    def _forget(self, now: float) -> None:
        """What is too old; and all but the newest, if these are much shorter."""
        if self.is_known and len(self._samples) > NEWEST:
            newest = [self._samples[-1 - place] for place in range(NEWEST)]
            if max(seconds for _, seconds in newest) < SHORTER * self.median:
                self._samples = deque(reversed(newest))
                self._sorted = sorted(seconds for _, seconds in newest)
        while len(self._samples) > ENOUGH and now - self._samples[0][0] > KEEP_SECONDS:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, seconds = self._samples.popleft()
        del self._sorted[bisect_left(self._sorted, seconds)]

    @property
    def is_known(self) -> bool:
        """Whether there have been enough to tell anything; the rest may be asked only then."""
        return self._is_known

    def _is_enough(self, now: float) -> bool:
        return len(self._sorted) >= (ENOUGH if now - self._samples[0][0] >= ENOUGH_SECONDS else MANY)

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
