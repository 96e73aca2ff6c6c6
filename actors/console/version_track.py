"""Version track: what the console knows of one version from one sample to the next, and its last 15 minutes.

Plain classes that take `now`, in seconds of a clock that never goes back. A version on which nothing happens costs a
comparison for each sample, and no ring until something has happened on it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from actors.console.counters import SERIES, ZERO_WHEN_IDLE, Counters, Delta
from actors.console.ring import Ring
from actors.metrics.statistics import VersionStatistics
from protocol.console.records import History

STEP = 5.0
POINTS = 180
# The rings of so many versions are kept: those on which something has happened last. One is about 10 kB.
MOST_RINGS = 3000


@dataclass(eq=False, slots=True)
class VersionTrack:
    """Of one version, since it was first seen."""

    statistics: VersionStatistics
    counters: Counters
    at: float
    slot_counters: Counters = field(init=False)
    slot_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.slot_counters, self.slot_at = self.counters, self.at

    def take(self, counters: Counters, now: float) -> Delta:
        """What has happened since the sample before."""
        delta = Delta.between(self.counters, counters, now - self.at)
        self.counters, self.at = counters, now
        return delta


class VersionRings:
    """The rings of all versions, within a bound in bytes. `key` stands for a version."""

    def __init__(self, most: int = MOST_RINGS) -> None:
        self._most = most
        # The one on which something has happened last comes last.
        self._rings: dict[Hashable, Ring] = {}
        self._sampled = Ring((), STEP, POINTS)

    def __len__(self) -> int:
        return len(self._rings)

    @property
    def nbytes(self) -> int:
        return sum(ring.nbytes for ring in self._rings.values()) + self._sampled.nbytes

    def note_sample(self, now: float) -> None:
        """All versions are sampled now; those without a point of their own have done nothing."""
        self._sampled.write((), now)

    def end_slot(self, key: Hashable, track: VersionTrack, queue: int, now: float) -> None:
        """Write a version's point if its time is over."""
        if self._sampled.slot(now) == self._sampled.slot(track.slot_at):
            return
        if track.slot_counters is not track.counters or queue:
            delta = Delta.between(track.slot_counters, track.counters, now - track.slot_at)
            self._write(key, delta.point(queue), track.slot_at)
        track.slot_counters, track.slot_at = track.counters, now

    def _write(self, key: Hashable, point: tuple[float | None, ...], at: float) -> None:
        ring = self._rings.pop(key, None)
        if ring is None:
            if len(self._rings) >= self._most:
                del self._rings[next(iter(self._rings))]
            ring = Ring(SERIES, STEP, POINTS)
        self._rings[key] = ring
        ring.write(point, at)

    def forget(self, key: Hashable) -> None:
        self._rings.pop(key, None)

    def history(self, key: Hashable, now: float, wall: float) -> History:
        """`wall` is the time of `now` in seconds since the epoch."""
        slots = self._sampled.slots(now)
        idle = np.where(ZERO_WHEN_IDLE, np.float32(0), np.float32(np.nan))
        sampled = self._sampled.has(slots)
        values = np.full((len(slots), len(SERIES)), np.nan, np.float32)
        values[sampled] = idle
        ring = self._rings.get(key)
        if ring is not None:
            own = ring.has(slots)
            values[own] = ring.read(slots)[own]
        # The present point is not over.
        return history(SERIES, STEP, slots[:-1], values[:-1], wall - now)


def history(
    names: tuple[str, ...], step: float, slots: NDArray[np.int64], values: NDArray[np.float32], shift: float
) -> History:
    """As its record; `shift` leads from the clock of the slots to seconds since the epoch."""
    rounded = np.round(values.astype(np.float64), 4)
    columns = {
        name: [None if value != value else value for value in rounded[:, place].tolist()]
        for place, name in enumerate(names)
    }
    return History(round(int(slots[0]) * step + shift, 3), step, columns)
