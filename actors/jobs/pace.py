"""Pace: what jobs may take of the server's time beside live requests, and in which pieces. Pure.

Live requests and jobs share the server's loop, its interpreter and its processors: what a row of a job costs there a
live request may have to wait for, to whichever model it goes. So while live requests come

1. rows have a share of the time that passes, and go a few at a time: as many as that share of what lies between two
   live requests is enough for, and one more;
2. what is done with them afterwards waits until more of it can be done together, since each commit costs much;
3. threads that read and write files of rows rest for the rest of the time.

Without any for a while there is no limit.
"""

from __future__ import annotations

# Of the time, beside live requests.
SHARE = 0.1
# Of a small row: what the loop, the store's thread and the model's process have to do with it. Of a large one the bytes
# count, too.
ROW_SECONDS = 0.0002
BYTE_SECONDS = 2e-9
# Live requests are about until some times what lies between them has passed without one, within bounds.
QUIET_DISTANCES = 4.0
LEAST_QUIET_SECONDS = 0.01
MOST_QUIET_SECONDS = 0.1
# What large rows may owe.
MOST_DEBT_SECONDS = 0.1
# How long ends of items are gathered.
GATHER_SECONDS = 0.05
# How much of the time between live requests the newest of them says.
_WEIGHT = 0.2


class Pace:
    """Of one server. Times are in seconds of one clock."""

    __slots__ = ("_credit", "_distance", "_last")

    def __init__(self) -> None:
        self._last = float("-inf")
        self._distance = 0.0
        self._credit = 0.0

    def note_live(self, now: float) -> None:
        """Live requests have come, to any model."""
        passed = min(now - self._last, MOST_QUIET_SECONDS)
        self._last = now
        self._distance += _WEIGHT * (passed - self._distance)
        self._credit = min(self._credit + SHARE * passed, SHARE * self._distance + ROW_SECONDS)

    def is_live(self, now: float) -> bool:
        """Whether live requests are about."""
        return now - self._last < quiet_seconds(self._distance)

    def may_go(self, now: float) -> bool:
        """Whether a row of a job may."""
        return self._credit >= ROW_SECONDS or not self.is_live(now)

    def gone(self, size: int) -> None:
        """A row with so many bytes has gone to its model. One that is large takes what several would have."""
        self._credit = max(self._credit - ROW_SECONDS - size * BYTE_SECONDS, -MOST_DEBT_SECONDS)

    def gathering(self, now: float) -> float:
        """How long an end of an item waits for others."""
        return GATHER_SECONDS if self.is_live(now) else 0.0

    def share(self, now: float) -> float:
        """What part of the time a thread may work for jobs."""
        return SHARE if self.is_live(now) else 1.0


def quiet_seconds(distance: float) -> float:
    """How long there are no live requests before they are said not to be about, when so much lies between them."""
    return min(max(QUIET_DISTANCES * distance, LEAST_QUIET_SECONDS), MOST_QUIET_SECONDS)
