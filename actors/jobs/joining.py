"""Joining: how many requests of jobs go to a model with its live requests, and how many without any. Pure.

1. A batch of live requests takes along as many as it has room for, and as fill the instances that are idle, as far as
   their p99 stays what it is (`riding`) and the server has time for them (`pace`).
2. While live requests come, and none is there, as few as make a worthwhile batch go, as far as `riding` finds that the
   live ones that may come meanwhile can wait for it.
3. Without live requests for a while a model has what it runs at the same time. A live request that comes then waits for
   that: so the while is some times what lies between live requests, and batches are no larger than worthwhile until
   there have been none for long. After a second without any, as many again are in its queue, so that it never waits.
4. What goes to another model has to suit these live requests, too.
5. One goes in any case when none has gone for long: live requests without a pause keep jobs waiting, not for ever.
"""

from __future__ import annotations

from actors.jobs.pace import LEAST_QUIET_SECONDS
from actors.jobs.riding import Riding
from protocol.jobs.execution import ModelLoad

SILENCE_SECONDS = 1.0
# A model has no live requests when there were none for so many times what lies between them, within bounds: of those
# that come at random less than one in a thousand ends such a pause. After RECENT_SECONDS nothing is thought of them.
QUIET_DISTANCES = 8.0
MOST_QUIET_SECONDS = 2.0
RECENT_SECONDS = 10.0
# How long an instance rests between a live request and one of a job: the next may come in the moment of the answer.
LEAST_GAP_SECONDS = 0.002
# Of the newest distance in their mean.
_WEIGHT = 0.1
# How long none goes, while nothing is known of the live requests, and when it is known that they would notice.
UNKNOWN_SECONDS = 5.0
MOST_WAIT_SECONDS = 30.0
_ALL = 1 << 30


class Joining:
    """Of one model, which may have had live requests until now. Times are in seconds of one clock.

    Attributes:
        last_start: when one has gone to the model last, or before the first when this was made.
        riding: is told what the model has run.
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
        """Some have gone to the model."""
        self.last_start = now
        self.riding.went(now)

    def beside(self, load: ModelLoad, running: int, waiting: int, now: float) -> int:
        """How many of so many that wait may go with live requests that are about to start, which `load` has already,
        beside so many that run."""
        live = max(load.in_flight - running, 1)
        room = load.capacity - load.in_flight
        if room > 0:
            room = min(room, waiting)
        return self.riding.beside(live, room, _of_instance(load), now, is_running=running > 0)

    def aside(self, load: ModelLoad, running: int, most: int, now: float) -> int:
        """How many of so many may go to another model, while this one runs so many."""
        if not self.has_live(now):
            return most
        return self.riding.aside(most, max(load.in_flight - running, 1), now)

    def is_dense(self, now: float) -> bool:
        """Whether live requests come one directly after the other: requests of jobs go with them, or not at all."""
        return 0.0 < self._distance < LEAST_GAP_SECONDS and now - self._last_came < LEAST_QUIET_SECONDS

    def has_live(self, now: float) -> bool:
        """Whether it has had live requests lately."""
        return self._distance > 0.0 and now - self._last_came < RECENT_SECONDS

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
        if silence < min(max(QUIET_DISTANCES * self._distance, LEAST_QUIET_SECONDS), MOST_QUIET_SECONDS):
            if running or silence < LEAST_GAP_SECONDS:
                return 0
            return self.riding.in_gap(_of_instance(load), self._distance, now)
        wanted = load.capacity if silence < SILENCE_SECONDS else 2 * load.capacity
        if self._distance and silence < RECENT_SECONDS:
            wanted = load.instances * self.riding.worthwhile(_of_instance(load))
        return max(wanted - running, 0)

    def overdue(self, now: float) -> int:
        """How many go in any case."""
        most = MOST_WAIT_SECONDS if self.riding.is_known else UNKNOWN_SECONDS
        return int(now - self.last_start >= most)


def _of_instance(load: ModelLoad) -> int:
    """How many one instance runs at the same time."""
    return max(load.capacity // load.instances, 1)
