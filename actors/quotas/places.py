"""Leases of places: an actor that has a store lease to this server the places for requests at once which it needs.

Flow: account → leased places → [place leases] ⇄ store ⇄ other servers. Owned by the quota exchange. A request waits for
it only where none of the places that are leased is free.
"""

from __future__ import annotations

from dataclasses import replace

import trio

from actors.quotas.store import MOST_AT_ONCE, RETRY_SECONDS, Outages, QuotaStore, StoreAway, ask
from protocol.failures import CallbackFailures
from protocol.quotas.leases import LEASE_SECONDS, Claim, Leases

# So that a lease survives a call that fails, or takes long.
_MOST_BETWEEN_CLAIMS = LEASE_SECONDS / 6


class PlaceLeases:
    """Claims the places of this server again and again while any are in use, and at once where a request waits."""

    def __init__(self, leases: Leases, store: QuotaStore, interval_seconds: float, failures: CallbackFailures) -> None:
        self.outages = Outages(
            "for itself how many requests of a key run at once",
            "requests at once are those of all its servers together",
        )
        self._leases = leases
        self._store = store
        self._interval = min(interval_seconds, _MOST_BETWEEN_CLAIMS)
        self._failures = failures
        leases.patience_seconds = 3 * self._interval

    async def run(self) -> None:
        """Claim for ever. What is leased at the end goes by itself, or by `give_back`."""
        due = trio.current_time()
        while True:
            await self._leases.wait_active()
            with trio.move_on_at(due):
                await self._leases.wait_hurried()
            now = trio.current_time()
            is_regular = now >= due
            if is_regular:
                due = now + self._interval
            await self._claim(self._leases.collect(now, is_regular=is_regular))
            if not self.outages.is_up:
                await trio.sleep(max(self._interval, RETRY_SECONDS))

    async def give_back(self) -> None:
        """Give back what is not in use."""
        if self.outages.is_up and len(self._leases):
            claims = self._leases.collect(trio.current_time(), is_regular=True)
            await self._claim([replace(claim, need=claim.held, want=claim.held) for claim in claims])

    async def _claim(self, claims: list[Claim]) -> None:
        is_done = False
        try:
            with self._failures.noted("background", "places could not be leased for requests; it is tried again"):
                is_done = await self._is_claimed(claims)
        finally:
            if not is_done:
                self._leases.fail()

    async def _is_claimed(self, claims: list[Claim]) -> bool:
        try:
            for start in range(0, len(claims), MOST_AT_ONCE):
                some, now = claims[start : start + MOST_AT_ONCE], trio.current_time()
                self._leases.adopt(some, await ask(self._store.lease, some), now)
        except StoreAway as error:
            self.outages.note_failure(error)
            return False
        self.outages.note_success()
        return True
