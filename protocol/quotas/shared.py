"""Rates that several servers have in common: their meters, and what of them is to be exchanged. Pure; I/O is elsewhere.

Each server admits by meters of its own, at once and alone. What they have taken since the last exchange is pushed to a
store, which keeps for each limit how much of it is used (its level) and answers with that; the meters go on from there:

    pushes = meters.collect(now)       # what has been taken here
    levels = …                         # of the store, which has added it to what the others have taken
    meters.adopt(pushes, levels, now)  # and what has been taken meanwhile comes on top

or `meters.fail(pushes, now)` where the store is away: then each server counts alone, from the last common level on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import trio

from protocol.quotas.leases import IDLE_SECONDS, Leases
from protocol.quotas.meters import Bucket, Meter, Rate
from protocol.quotas.quota import Limit


class SharedBucket(Bucket):
    """A rate of which other servers use a part."""

    __slots__ = ("_meters", "asked_at", "is_active", "name", "pending")

    def __init__(self, rate: Rate, name: str, meters: SharedMeters) -> None:
        super().__init__(rate)
        self.name = name
        self.pending = 0.0  # taken here, and not pushed yet; negative where more was given back
        self.is_active = False
        self.asked_at = -math.inf
        self._meters = meters

    def wait(self, cost: float, now: float) -> float:
        seconds = super().wait(cost, now)
        if seconds:  # others may have given some back
            self._ask(now)
        return seconds

    def take(self, cost: float, now: float) -> None:
        super().take(cost, now)
        self.pending += cost
        self._ask(now)

    def give(self, cost: float) -> None:
        super().give(cost)
        self.pending -= cost
        self._ask(None)

    def _ask(self, now: float | None) -> None:
        if now is not None:
            self.asked_at = now
        if not self.is_active:
            self._meters.activate(self)

    def used(self, now: float) -> float:
        """In units, as far as this server knows."""
        return self.reset(now) / self.rate.interval

    def adopt(self, level: float, now: float) -> None:
        """So much is used of it by all, beside what is pending here."""
        self._free_at = now + (level + self.pending) * self.rate.interval


@dataclass(frozen=True, slots=True)
class Push:
    """What the store is told of one limit.

    Attributes:
        name: of the limit, the same at all servers.
        delta: what was taken since the last push, less what was given back.
        base: how much was used before, as far as this server knows; for a store that has lost the level.
        rate: units that flow back in a second.
        most: the push does not raise the level above it; None for any.
    """

    meter: SharedBucket
    name: str
    delta: float
    base: float
    rate: float
    most: float | None


class SharedMeters:
    """The meters of one server that it shares, and which of them are in use: those are exchanged.

    Attributes:
        leases: of its numbers of requests at once, which go another way.
    """

    def __init__(self) -> None:
        self.leases = Leases()
        self._active: dict[SharedBucket, None] = {}
        self._is_any_active = trio.Event()
        self._is_alone = False

    def meter(self, account: str, limit: Limit) -> Meter:
        """A new one of a limit of this account."""
        # Nothing of what is put together may be taken for a mark between.
        name = f"{quote(account, safe='')}:{limit.unit}:{quote(limit.model, safe='')}"
        if isinstance(limit.amount, int):
            return self.leases.meter(limit.amount, name)
        return SharedBucket(limit.amount, name, self)

    def activate(self, bucket: SharedBucket) -> None:
        bucket.is_active = True
        self._active[bucket] = None
        self._is_any_active.set()

    def __len__(self) -> int:
        """How many are in use."""
        return len(self._active) + len(self.leases)

    async def wait_active(self) -> None:
        """Until a rate is in use."""
        await self._is_any_active.wait()

    def collect(self, now: float) -> list[Push]:
        """What is to be pushed now."""
        return [self._push(bucket, now) for bucket in self._active]

    def _push(self, bucket: SharedBucket, now: float) -> Push:
        delta, rate = bucket.pending, bucket.rate
        base = max(0.0, bucket.used(now) - delta)
        # What was used alone counts once it is known, and leaves no debt by which all would be refused for long.
        most = rate.burst if self._is_alone else None
        return Push(bucket, bucket.name, delta, base, 1 / rate.interval, most)

    def adopt(self, pushes: Iterable[Push], levels: Sequence[float], now: float) -> None:
        """The store has taken these, and then so much was used of each."""
        for push, level in zip(pushes, levels, strict=True):
            bucket = push.meter
            bucket.pending -= push.delta
            bucket.adopt(level, now)
            if not bucket.pending and now - bucket.asked_at > IDLE_SECONDS:
                bucket.is_active = False
                del self._active[bucket]
        if not self._active:
            self._is_any_active = trio.Event()

    def succeed(self) -> None:
        """All of an exchange has been adopted."""
        self._is_alone = False

    def fail(self, now: float) -> None:
        """The store is away. What has flowed back meanwhile need not be pushed when it is there again."""
        self._is_alone = True
        for bucket in self._active:
            bucket.pending = min(max(bucket.pending, 0.0), bucket.used(now))
