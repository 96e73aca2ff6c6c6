"""A quota store of this process: the rules of the scripts, in Python, by Trio's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from actors.quotas.store import StoreAway
from protocol.quotas.leases import LEASE_SECONDS, Claim, Grant
from protocol.quotas.shared import Push


class Levels:
    """Implements `actors.quotas.store.QuotaStore`. `is_away` makes it fail; `clear` loses all it has.

    With `leases` it is one server's view of a store that has these, for one more server.
    """

    def __init__(self, leases: SharedLeases | None = None) -> None:
        self.is_away = False
        self.leases = SharedLeases() if leases is None else leases
        self.lease_calls = 0
        self.calls = 0
        self.is_closed = False
        self._kept: dict[str, tuple[float, float]] = {}

    def clear(self) -> None:
        self._kept.clear()
        self.leases.clear()

    async def lease(self, claims: Sequence[Claim]) -> Sequence[Grant]:
        await trio.sleep(0.001)
        self.lease_calls += 1
        if self.is_away:
            raise StoreAway("nobody is there")
        return [self.leases.lease(id(self), claim, trio.current_time()) for claim in claims]

    async def exchange(self, pushes: Sequence[Push]) -> Sequence[float]:
        await trio.sleep(0.001)
        self.calls += 1
        if self.is_away:
            raise StoreAway("nobody is there")
        return [self.add(push, trio.current_time()) for push in pushes]

    def add(self, push: Push, now: float) -> float:
        level = push.base
        if push.name in self._kept:
            before, at = self._kept[push.name]
            level = max(0.0, before - (now - at) * push.rate)
        raised = max(0.0, level + push.delta)
        if push.most is not None and raised > push.most:
            raised = max(level, push.most)
        self._kept[push.name] = raised, now
        return raised

    async def close(self) -> None:
        self.is_closed = True


class SharedLeases:
    """The leases of all servers: the rules of the script, in Python."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[int, _Lease]] = {}

    def clear(self) -> None:
        self._kept.clear()

    def lease(self, server: int, claim: Claim, now: float) -> Grant:
        kept = self._kept.setdefault(claim.name, {})
        for each, lease in list(kept.items()):
            if lease.ends <= now:
                del kept[each]
        others = [lease for each, lease in kept.items() if each != server]
        leased = sum(lease.size for lease in others)
        size = max(claim.held, min(claim.want, claim.limit - leased))
        kept.pop(server, None)
        if size or claim.need:
            kept[server] = _Lease(size, claim.held, claim.need, now + LEASE_SECONDS)
        held, is_wanted = sum(lease.held for lease in others), any(lease.need > lease.size for lease in others)
        return Grant(size, leased, held, is_wanted)


@dataclass(frozen=True, slots=True)
class _Lease:
    size: int
    held: int
    need: int
    ends: float
