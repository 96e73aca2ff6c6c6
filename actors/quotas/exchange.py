"""Quota exchange: an actor that tells a store what keys use here, and this server's meters what they use elsewhere.

Flow: account → shared meters → [quota exchange] ⇄ store ⇄ other servers. Owned by the server. No request waits for it:
admission looks at the server's own meters, which are behind the others by an interval at most. Numbers of requests at
once are leased instead, by a task of its own in `places`.
"""

from __future__ import annotations

import trio

from actors.quotas.places import PlaceLeases
from actors.quotas.store import MOST_AT_ONCE, RETRY_SECONDS, ExchangeFigures, Outages, QuotaStore, StoreAway, ask
from protocol.failures import CallbackFailures
from protocol.quotas.shared import SharedMeters

# What was used last is pushed when the server ends.
END_SECONDS = 1.0


class QuotaExchange:
    """Exchanges what is used of the shared meters, once in an interval while any are in use, and has places leased."""

    def __init__(
        self, meters: SharedMeters, store: QuotaStore, interval_seconds: float, failures: CallbackFailures
    ) -> None:
        self._meters = meters
        self._store = store
        self._interval = interval_seconds
        self._failures = failures
        self._outages = Outages("for itself what its keys use", "quotas are those of all its servers together")
        self._places = PlaceLeases(meters.leases, store, interval_seconds, failures)

    @property
    def figures(self) -> ExchangeFigures:
        """As they are now."""
        rates, places = self._outages, self._places.outages
        return ExchangeFigures(
            rates.succeeded + places.succeeded,
            rates.failed + places.failed,
            rates.is_up and places.is_up,
            len(self._meters),
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Exchange for ever. Cancelled: pushes what was used since the last exchange, if the store is there."""
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._places.run)
                await self._run_rates()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + END_SECONDS):
                with self._failures.noted("background", "what keys used last could not be told to the quota store"):
                    if self._outages.is_up:
                        await self.exchange()
                await self._places.give_back()
                with self._failures.noted("background", "the quota store could not be closed"):
                    await self._store.close()

    async def _run_rates(self) -> None:
        while True:
            await self._meters.wait_active()
            with self._failures.noted("background", "what keys use could not be exchanged; it is tried again"):
                await self.exchange()
            await trio.sleep(self._interval if self._outages.is_up else max(self._interval, RETRY_SECONDS))

    async def exchange(self) -> None:
        """Push what was used, and take over what others have. Where the store is away, that is logged and counted."""
        pushes = self._meters.collect(trio.current_time())
        try:
            for start in range(0, len(pushes), MOST_AT_ONCE):
                some = pushes[start : start + MOST_AT_ONCE]
                levels = await ask(self._store.exchange, some)
                self._meters.adopt(some, levels, trio.current_time())
        except StoreAway as error:
            self._meters.fail(trio.current_time())
            self._outages.note_failure(error)
            return
        self._meters.succeed()
        if pushes:
            self._outages.note_success()
