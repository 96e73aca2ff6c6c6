"""Graceful GOAWAY: ends an HTTP/2 connection in two steps so that no request of a conforming client is lost.

A plain policy that takes `now` in seconds. Source: RFC 9113, section 6.8: a first GOAWAY asks for no more streams, and
those that are on their way are still answered; the second one, once the client has heard of it, names the last.

Many clients give up everything in flight on a connection that sends a GOAWAY. So the first one waits for a moment in
which nothing is in flight, behind the last response, as long as there soon is one.
"""

from __future__ import annotations

import enum
import math

# How long the first GOAWAY waits for the end of the requests in flight, or for a request where there are none.
WAIT_SECONDS = 1.0
# How long a client has to say that it has read it.
ANSWER_SECONDS = 1.0


class Step(enum.Enum):
    ANNOUNCE = enum.auto()  # send the first GOAWAY, and the ping
    REFUSE = enum.auto()  # send the last one; the connection ends with the requests that it has


class Goodbye:
    """The graceful end of one connection."""

    __slots__ = ("_announce_at", "_refuse_at", "has_begun")

    def __init__(self) -> None:
        self.has_begun = False
        self._announce_at = math.inf
        self._refuse_at = math.inf

    def begin(self, now: float) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._announce_at = now + WAIT_SECONDS

    def end(self) -> Step:
        """Begin at once."""
        self.has_begun = True
        self._announce_at = self._refuse_at = math.inf
        return Step.REFUSE

    def on_idle(self, now: float) -> Step | None:
        """The last request in flight has ended."""
        return None if self._announce_at == math.inf else self._announce(now)

    def on_answered(self) -> Step | None:
        """The client has acknowledged the PING."""
        return None if self._refuse_at == math.inf else self.end()

    def due(self, now: float) -> Step | None:
        """What to send now; called periodically."""
        if now >= self._announce_at:
            return self._announce(now)
        if now >= self._refuse_at:
            return self.end()
        return None

    def _announce(self, now: float) -> Step:
        self._announce_at = math.inf
        self._refuse_at = now + ANSWER_SECONDS
        return Step.ANNOUNCE
