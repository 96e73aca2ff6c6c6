"""Meters of a quota: how much of a rate, or of a number of requests at once, is used. Policies that take `now`."""

from __future__ import annotations

import math
from typing import Protocol

import msgspec

# What is free earlier than this is free: the error of adding up floating-point times.
_TOLERANCE_SECONDS = 1e-6
_TOLERANCE_UNITS = 1e-3
# When a request will end is not known; the same as for other refusals that may be over soon.
TRY_AGAIN_SECONDS = 1.0


class Rate(msgspec.Struct, frozen=True):
    """`limit` units in each `seconds`, of which `burst` may be used at once."""

    limit: float
    seconds: float
    burst: float

    @property
    def interval(self) -> float:
        """The seconds in which one unit is free again."""
        return self.seconds / self.limit


class Meter(Protocol):
    """How much of one limit is used."""

    def wait(self, cost: float, now: float) -> float:
        """In how many seconds `cost` may be taken; 0 for now."""

    def take(self, cost: float, now: float) -> None:
        """Use it, whether it is free or not."""

    def give(self, cost: float) -> None:
        """It was not used after all."""

    def remaining(self, now: float) -> int:
        """What is free, in whole units."""

    def reset(self, now: float) -> float:
        """In how many seconds all of it is free, if nothing more is used."""


class Bucket:
    """A rate, by the generic cell rate algorithm (GCRA): one number says when all of it is free again.

    What costs more than the burst is admitted when all is free, since it would never be otherwise. What turns out to
    cost more than was free is owed, and has to be free again first.
    """

    __slots__ = ("_free_at", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._free_at = -math.inf  # when the whole burst is free; in GCRA's words the theoretical arrival time

    def _available(self, now: float) -> float:
        """Negative for what is owed."""
        ahead = self._free_at - now
        return self.rate.burst if ahead <= 0 else self.rate.burst - ahead / self.rate.interval

    def wait(self, cost: float, now: float) -> float:
        missing = min(cost, self.rate.burst) - self._available(now)
        seconds = missing * self.rate.interval
        return 0.0 if seconds <= _TOLERANCE_SECONDS else seconds

    def take(self, cost: float, now: float) -> None:
        self._free_at = max(self._free_at, now) + cost * self.rate.interval

    def give(self, cost: float) -> None:
        self._free_at -= cost * self.rate.interval

    def remaining(self, now: float) -> int:
        return max(0, math.floor(min(self.rate.burst, self._available(now) + _TOLERANCE_UNITS)))

    def reset(self, now: float) -> float:
        return max(0.0, self._free_at - now)

    def change(self, rate: Rate, now: float) -> None:
        """Another rate, of which as many units are used as of the one before."""
        used = max(0.0, self._free_at - now) / self.rate.interval
        self.rate = rate
        self._free_at = now + used * rate.interval if used else -math.inf


class Places:
    """A number of requests at once."""

    __slots__ = ("_taken", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = 0.0

    def wait(self, cost: float, now: float) -> float:
        return 0.0 if self._taken + cost <= self.limit else TRY_AGAIN_SECONDS

    def take(self, cost: float, now: float) -> None:
        self._taken += cost

    def give(self, cost: float) -> None:
        self._taken -= cost

    def remaining(self, now: float) -> int:
        return max(0, math.floor(self.limit - self._taken))

    def reset(self, now: float) -> float:
        return TRY_AGAIN_SECONDS if self._taken else 0.0
