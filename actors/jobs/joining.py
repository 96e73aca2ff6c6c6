"""Joining: how many requests of jobs go to a model with its live requests, and how many without any. Pure.

1. A batch of live requests takes along as many as it has room for, and as fill the instances that are idle, as far as
   that costs the live ones little (`riding`) and the server has time for them (`pace`).
2. Without live requests for a while a model has what it runs at the same time. A live request that comes then waits for
   that: so the while is some times what lies between live requests. After a second without any, as many again are in
   its queue, so that it never waits.
3. One or two go in any case when none has gone for some seconds: live requests without a pause keep jobs waiting, not
   for ever. Of a hundred live requests in a second less than one waits for these.
"""

from __future__ import annotations

from actors.jobs.pace import MOST_QUIET_SECONDS, quiet_seconds
from actors.jobs.riding import Riding
from protocol.jobs.execution import ModelLoad

SILENCE_SECONDS = 1.0
# Of the newest distance in their mean.
_WEIGHT = 0.2
MOST_WAIT_SECONDS = 5.0
_ALL = 1 << 30


class Joining:
    """Of one model, which may have had live requests until now. Times are in seconds of one clock.

    Attributes:
        last_start: when one has gone to the model last, or before the first when this was made.
        riding: is told how long live requests took that had others with them.
    """

    __slots__ = ("_distance", "_is_busy", "_last_came", "_last_seen", "last_start", "riding")

    def __init__(self, now: float) -> None:
        self._last_came = self._last_seen = now
        self._distance = 0.0
        self._is_busy = False
        self.last_start = now
        self.riding = Riding()

    def note_live(self, now: float) -> None:
        """Live requests have come."""
        newest = min(now - self._last_came, MOST_QUIET_SECONDS)
        self._distance += _WEIGHT * (newest - self._distance)
        self._last_came = self._last_seen = now

    def started(self, now: float) -> None:
        """One has gone to the model."""
        self.last_start = now

    def beside(self, load: ModelLoad) -> int:
        """How many may go with live requests that are about to start, which `load` has already."""
        return max(min(load.capacity - load.in_flight, self.riding.most()), 0)

    def alone(self, load: ModelLoad, running: int, now: float) -> int:
        """How many go without live requests, where so many run; none while there are any."""
        if not load.capacity:  # it serves no more, of which all that wait should hear
            return _ALL
        live = load.in_flight - running
        if live > 0:  # perhaps of those that come by another way
            self._is_busy = True
            return 0
        if self._is_busy:  # just answered: the next may come in this moment
            self._is_busy, self._last_seen = False, now
        silence = now - self._last_seen
        if silence < quiet_seconds(self._distance):
            return 0
        wanted = load.capacity if silence < SILENCE_SECONDS else 2 * load.capacity
        return max(wanted - running, 0)

    def overdue(self, now: float) -> int:
        """How many go in any case."""
        return self.riding.most_at_last() if now - self.last_start >= MOST_WAIT_SECONDS else 0
