"""Numbers of requests at once that several servers have in common. Pure; I/O is elsewhere.

Each server runs requests in places that it has leased from a store, which never leases more than the limit allows, and
leases a few more than are in use, so that a request seldom waits for the store:

    await meter.wait_known()              # only where no leased place is free: until the store has answered
    account.admit(…)                      # at once, by what is leased
    claims = leases.collect(now, …)       # what runs here, and how many places are wanted
    grants = …                            # of the store
    leases.adopt(claims, grants, now)

or `leases.fail()` where the store is away: then each server has the whole limit for itself. A lease ends by itself in
LEASE_SECONDS, if it is not claimed again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from protocol.quotas.meters import TRY_AGAIN_SECONDS, Places

# So long the places of a server that was killed stay taken.
LEASE_SECONDS = 3.0
# A limit that nobody has asked for so long has no place leased any more, until somebody does.
IDLE_SECONDS = 10.0
# So long a server leases no more than it needs, once another one has needed more than there was.
_PRESSED_SECONDS = 1.0


class LeasedPlaces(Places):
    """A number of requests at once, of which other servers have a part."""

    __slots__ = (
        *(
            "_asked_at",
            "_elsewhere",
            "_has_more_elsewhere",
            "_pressed_until",
            "_lease",
            "_leases",
            "_peak",
            "_valid_until",
        ),
        *("is_active", "is_full", "name", "waiting"),
    )

    def __init__(self, limit: int, name: str, leases: Leases) -> None:
        super().__init__(limit)
        self.name = name
        self.waiting = 0
        self.is_active = False
        self.is_full = False  # all places are taken, here and elsewhere
        self._leases = leases
        self._lease = 0
        self._valid_until = -math.inf
        self._elsewhere = 0  # requests
        self._has_more_elsewhere = False  # places that are leased there, and not in use
        self._pressed_until = -math.inf  # others want those that are not in use here
        self._peak = 0.0
        self._asked_at = -math.inf

    def _free(self, now: float) -> float:
        """Places, of those that are here."""
        if self._leases.is_alone:
            return self.limit - self._taken
        return (min(self._lease, self.limit) if now <= self._valid_until else 0) - self._taken

    def wait(self, cost: float, now: float) -> float:
        self._ask(now)
        return 0.0 if cost <= self._free(now) else TRY_AGAIN_SECONDS

    def take(self, cost: float, now: float) -> None:
        super().take(cost, now)
        self._peak = max(self._peak, self._taken)
        self._ask(now)

    def give(self, cost: float) -> None:
        super().give(cost)
        if not self.is_active:
            self._leases.activate(self)

    def _ask(self, now: float) -> None:
        self._asked_at = now
        if not self.is_active:
            self._leases.activate(self)

    def remaining(self, now: float) -> int:
        elsewhere = 0 if self._leases.is_alone else self._elsewhere
        return max(0, math.floor(self.limit - self._taken - elsewhere))

    def reset(self, now: float) -> float:
        return TRY_AGAIN_SECONDS if self._taken or self._elsewhere else 0.0

    def is_open(self) -> bool:
        """Whether the store has yet to say if one more may run here."""
        return not (self._leases.is_alone or self.is_full or self._free(trio.current_time()) >= 1)

    async def wait_known(self) -> None:
        """Until one more request may run here, or may not: `wait` says which. Returns at once if a place is free."""
        if not self.is_open():
            return
        self._ask(trio.current_time())
        self.waiting += 1
        try:
            deadline = math.inf
            while self.is_open() and trio.current_time() < deadline:
                if not self._has_more_elsewhere:  # else others give it back with their next claims
                    self._leases.hurry(self)
                with trio.move_on_at(deadline):
                    await self._leases.wait_news()
                deadline = min(deadline, trio.current_time() + self._leases.patience_seconds)
        finally:
            self.waiting -= 1

    def claim(self, now: float, *, is_regular: bool) -> Claim:
        """What the store is to be told; from now on no more than this is used here without its answer."""
        held = math.ceil(self._taken)
        need = min(held + self.waiting, max(self.limit, held))
        want = need
        if now >= self._pressed_until:
            spare = 1 + need // 4 if now - self._asked_at <= IDLE_SECONDS else 0
            want = max(need, min(self.limit, max(need + spare, math.ceil(self._peak))))
        if is_regular:
            self._peak = max(self._taken, math.floor((self._peak + self._taken) / 2))
        self._lease = min(self._lease, want)
        return Claim(self, self.name, held, need, want, self.limit)

    def adopt(self, grant: Grant, claimed_at: float) -> bool:
        """The store's answer to a claim. Whether another one is wanted at once: others wait for places of this one."""
        self._lease = grant.lease
        self._valid_until = claimed_at + LEASE_SECONDS
        self._elsewhere = grant.held_elsewhere
        self._has_more_elsewhere = grant.leased_elsewhere > grant.held_elsewhere
        self.is_full = grant.lease + grant.leased_elsewhere >= self.limit and not self._has_more_elsewhere
        if not grant.is_wanted_elsewhere:
            return False
        was_pressed, self._pressed_until = claimed_at < self._pressed_until, claimed_at + _PRESSED_SECONDS
        return not was_pressed and self._lease > self._taken

    def let_go(self) -> bool:
        """Whether nothing of it is known, used or leased any more; then all is forgotten."""
        if self._taken or self._lease or self.waiting:
            return False
        self.is_full = self._has_more_elsewhere = False
        self._elsewhere = 0
        return True


@dataclass(frozen=True, slots=True)
class Claim:
    """What the store is told of one limit.

    Attributes:
        name: of the limit, the same at all servers.
        held: requests that run here.
        need: places for those and for all that wait.
        want: places that are useful here, `need` at least.
    """

    meter: LeasedPlaces
    name: str
    held: int
    need: int
    want: int
    limit: int


@dataclass(frozen=True, slots=True)
class Grant:
    """The store's answer to a claim.

    Attributes:
        lease: places that this server has now; fewer than it wants, if there are none.
        leased_elsewhere: places that others have.
        held_elsewhere: how many of those are in use.
        is_wanted_elsewhere: another server needs more than it has.
    """

    lease: int
    leased_elsewhere: int
    held_elsewhere: int
    is_wanted_elsewhere: bool


class Leases:
    """The leased places of one server, and which of them are in use: those are claimed again and again.

    Attributes:
        is_alone: the store is away.
        patience_seconds: how long a request waits for places that others have and do not use, behind the first answer.
    """

    def __init__(self) -> None:
        self.is_alone = False
        self.patience_seconds = LEASE_SECONDS
        self._active: dict[str, LeasedPlaces] = {}  # by name
        self._hurried: dict[LeasedPlaces, None] = {}
        self._has_active = trio.Event()
        self._has_hurried = trio.Event()
        self._news = trio.Event()

    def __len__(self) -> int:
        """How many are in use."""
        return len(self._active)

    def meter(self, limit: int, name: str) -> LeasedPlaces:
        """That of this name: the one in use, which a limit may have that was gone for a while, else a new one."""
        meter = self._active.get(name)
        if meter is None:
            return LeasedPlaces(limit, name, self)
        meter.limit = limit
        return meter

    def activate(self, meter: LeasedPlaces) -> None:
        meter.is_active = True
        self._active[meter.name] = meter
        self._has_active.set()

    def hurry(self, meter: LeasedPlaces) -> None:
        """It is to be claimed now, and not with the next regular claims."""
        self._hurried[meter] = None
        self._has_hurried.set()

    async def wait_active(self) -> None:
        """Until one is in use."""
        await self._has_active.wait()

    async def wait_hurried(self) -> None:
        """Until one is to be claimed now."""
        await self._has_hurried.wait()

    async def wait_news(self) -> None:
        """Until the store has answered, or is away."""
        await self._news.wait()

    def collect(self, now: float, *, is_regular: bool) -> list[Claim]:
        """What is to be claimed: of all, or of those that are wanted now."""
        meters = list(self._active.values() if is_regular else self._hurried)
        self._hurried.clear()
        self._has_hurried = trio.Event()
        return [meter.claim(now, is_regular=is_regular) for meter in meters]

    def adopt(self, claims: Sequence[Claim], grants: Sequence[Grant], claimed_at: float) -> None:
        """The store has answered these."""
        self.is_alone = False
        for claim, grant in zip(claims, grants, strict=True):
            meter = claim.meter
            if meter.adopt(grant, claimed_at):
                self.hurry(meter)
            elif not claim.want and meter.let_go():
                meter.is_active = False
                self._active.pop(meter.name, None)
        if not self._active:
            self._has_active = trio.Event()
        self._tell()

    def fail(self) -> None:
        """The store is away. Places in use are claimed again when it is back."""
        self.is_alone = True
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, trio.Event()
        news.set()
