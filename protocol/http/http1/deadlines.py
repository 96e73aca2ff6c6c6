"""Timeouts of an HTTP/1 connection that waits for its client, checked periodically. Pure: whoever looks after
connections says what time it is."""

from __future__ import annotations

import math
from enum import Enum, auto

from protocol.http.settings import LEAVE_SECONDS, ConnectionLimits


class Look(Enum):
    """The result of a check."""

    NOTHING = auto()
    TIMED_OUT = auto()  # no request has come in time, or no end of its head
    OVERDUE = auto()  # one request has been under way since the last look


class Deadlines:
    """Of one connection, which is looked at every now and then: a scope with a deadline for each request would cost
    more. So a wait ends up to the time between two looks too late."""

    __slots__ = ("_deadline", "_header_timeout", "_idle_timeout", "_seen", "_timed", "is_leaving")

    def __init__(self, limits: ConnectionLimits) -> None:
        self.is_leaving = False
        self._idle_timeout = limits.idle_timeout
        self._header_timeout = limits.header_timeout
        self._deadline = math.inf  # of the wait for a request, or for its head
        self._seen = -1  # which request ran, or was the last one, at the last look
        self._timed = -1  # behind which one a head is timed, or was

    def look(self, now: float, served: int, *, is_waiting: bool) -> Look:
        """Whether a request, or the end of its head, is waited for, and how many requests there have been."""
        is_new, self._seen = self._seen != served, served
        if not is_waiting:
            self._deadline = math.inf
            return Look.NOTHING if is_new else Look.OVERDUE
        if is_new or self._deadline == math.inf:
            self._deadline = now + self._idle_timeout
            return Look.NOTHING
        return Look.TIMED_OUT if now >= self._deadline else Look.NOTHING

    def begin_head(self, now: float, served: int) -> None:
        """The head behind so many requests has begun, and is incomplete."""
        if self._timed != served:
            self._timed = self._seen = served
            self._deadline = now + self._header_timeout

    def leave(self, now: float) -> None:
        """The server stops: idle clients are not waited for any longer."""
        self.is_leaving = True
        self._idle_timeout = min(self._idle_timeout, LEAVE_SECONDS)
        self._deadline = min(self._deadline, now + LEAVE_SECONDS)
