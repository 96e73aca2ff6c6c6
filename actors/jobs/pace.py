"""Pace: what jobs may take of the server's time beside live requests, and in which pieces. Pure.

Live requests and jobs share the server's loop, its interpreter and its processors: what a row of a job costs there a
live request may have to wait for, to whichever model it goes. So while live requests come

1. rows have a share of the time that passes, which is saved up for as many as go together at most: how many that are,
   and when, `riding` says;
2. what is done with them before and afterwards is done with as many at a time: who has to wait at all may wait for all
   of them, and the others for none;
3. threads that read and write files of rows have a part of the time, in few pieces;
4. now and then no rows go, which shows what live requests take without.

Without any for a while there is no limit.
"""

from __future__ import annotations

# Of the time, beside live requests: for rows; and for each thread.
SHARE = 0.1
THREAD_SHARE = 0.05
# Of a small row: what the loop, the store's thread and the model's process have to do with it. Of a large one the bytes
# count, too.
ROW_SECONDS = 0.0002
BYTE_SECONDS = 2e-9
# So many go together at most.
MOST_ROWS = 64
# A start is met by live requests so many times: when its rows go to their model, when they are answered, and when
# others are made ready. Each of these holds the loop up for so long for each row, and other threads it for so long
# besides.
PIECES = 3
_PIECE_OF_ROW_SECONDS = 0.00003
_PIECE_SECONDS = 0.0004
# Where live requests come closer than that, what rows cost the server shows in what they take, though nobody can say in
# which of them. So for a part of each while no rows go, and what live requests take counts when none have gone for
# some time.
DENSE_SECONDS = 0.002
WHILE_SECONDS = 1.0
REST_SECONDS = 0.3
CLEAN_SECONDS = 0.1
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
_ALL = 1 << 30


class Pace:
    """Of one server. Times are in seconds of one clock.

    Attributes:
        together: how many rows have gone last.
    """

    __slots__ = ("_credit", "_distance", "_last", "_last_start", "together")

    def __init__(self) -> None:
        self.together = 1
        self._last = self._last_start = float("-inf")
        self._distance = 0.0
        self._credit = 0.0

    def note_live(self, now: float) -> None:
        """Live requests have come, to any model."""
        passed = min(now - self._last, MOST_QUIET_SECONDS)
        if passed < MOST_QUIET_SECONDS:
            self._credit = min(self._credit + SHARE * passed, MOST_ROWS * ROW_SECONDS)
        else:
            self._credit = 0.0
        self._last = now
        self._distance += _WEIGHT * (passed - self._distance)

    def is_live(self, now: float) -> bool:
        """Whether live requests are about."""
        return now - self._last < quiet_seconds(self._distance)

    def is_dense(self, now: float) -> bool:
        """Whether live requests come one directly after the other."""
        return self._distance < DENSE_SECONDS and self.is_live(now)

    def is_clean(self, now: float) -> bool:
        """Whether what live requests take now is what they take without jobs."""
        return now - self._last_start > CLEAN_SECONDS or not self.is_dense(now)

    def rows(self, now: float) -> int:
        """How many rows of jobs may go together."""
        if self.is_dense(now) and now % WHILE_SECONDS < REST_SECONDS:
            return 0
        return int(max(self._credit, 0.0) / ROW_SECONDS + 1e-9) if self.is_live(now) else _ALL

    def gone(self, rows: int, size: int, now: float) -> None:
        """Rows with so many bytes have gone to their model. One that is large takes what several would have."""
        self.together, self._last_start = rows, now
        self._credit = max(self._credit - rows * ROW_SECONDS - size * BYTE_SECONDS, -MOST_DEBT_SECONDS)

    def gathering(self, now: float) -> float:
        """How long an end of an item waits for others."""
        return GATHER_SECONDS if self.is_live(now) else 0.0

    def share(self, now: float) -> float:
        """What part of the time a thread may work for jobs."""
        return THREAD_SHARE if self.is_live(now) else 1.0


def piece_seconds(rows: int) -> float:
    """For how long the server holds a live request up that meets a start of so many, besides what the model does."""
    return _PIECE_SECONDS + rows * _PIECE_OF_ROW_SECONDS


def quiet_seconds(distance: float) -> float:
    """How long there are no live requests before they are said not to be about, when so much lies between them."""
    return min(max(QUIET_DISTANCES * distance, LEAST_QUIET_SECONDS), MOST_QUIET_SECONDS)
