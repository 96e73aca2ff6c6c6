"""Quota exchange: an actor that tells a store what keys use here, and this server's meters what they use elsewhere.

Flow: account → shared meters → [quota exchange] ⇄ store ⇄ other servers. Owned by the server. No request waits for it:
admission looks at the server's own meters, which are behind the others by an interval at most.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from protocol.failures import CallbackFailures
from protocol.quotas.shared import Push, SharedMeters

logger = logging.getLogger(__name__)

# Of one call: a store does nothing else meanwhile.
MOST_AT_ONCE = 500
# How long one call may take, with the search for the host's address.
CALL_SECONDS = 2.0
# Between two attempts while the store is away, if that is longer than the interval.
RETRY_SECONDS = 1.0
# What was used last is pushed when the server ends.
END_SECONDS = 1.0


class StoreAway(Exception):
    """The store has not answered, or not as it should; whether it has taken what it was told is not known."""


class QuotaStore(Protocol):
    """Keeps how much of each limit is used."""

    async def exchange(self, pushes: Sequence[Push]) -> Sequence[float]:
        """Add to each level what is pushed; returns the levels. Raises StoreAway."""

    async def close(self) -> None:
        """To be called once, at the end."""


@dataclass(slots=True)
class ExchangeFigures:
    """For the metrics: exchanges so far, by how they went, whether the last one succeeded, and the limits in use."""

    succeeded: int = 0
    failed: int = 0
    is_up: bool = True
    limits: int = 0


class QuotaExchange:
    """Exchanges what is used of the shared meters, once in an interval while any are in use."""

    def __init__(
        self, meters: SharedMeters, store: QuotaStore, interval_seconds: float, failures: CallbackFailures
    ) -> None:
        self._meters = meters
        self._store = store
        self._interval = interval_seconds
        self._failures = failures
        self._figures = ExchangeFigures()

    @property
    def figures(self) -> ExchangeFigures:
        """As they are now."""
        self._figures.limits = len(self._meters)
        return self._figures

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Exchange for ever. Cancelled: pushes what was used since the last exchange, if the store is there."""
        task_status.started()
        try:
            while True:
                await self._meters.wait_active()
                with self._failures.noted("background", "what keys use could not be exchanged; it is tried again"):
                    await self.exchange()
                await trio.sleep(self._interval if self._figures.is_up else max(self._interval, RETRY_SECONDS))
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + END_SECONDS):
                with self._failures.noted("background", "what keys used last could not be told to the quota store"):
                    if self._figures.is_up:
                        await self.exchange()
                with self._failures.noted("background", "the quota store could not be closed"):
                    await self._store.close()

    async def exchange(self) -> None:
        """Push what was used, and take over what others have. Where the store is away, that is logged and counted."""
        pushes = self._meters.collect(trio.current_time())
        try:
            for start in range(0, len(pushes), MOST_AT_ONCE):
                some = pushes[start : start + MOST_AT_ONCE]
                levels = await self._call(some)
                self._meters.adopt(some, levels, trio.current_time())
        except StoreAway as error:
            self._meters.fail(trio.current_time())
            self._figures.failed += 1
            if self._figures.is_up:
                logger.error(
                    "the quota store: %s; until it is there again this server counts for itself what its keys use",
                    error,
                )
            self._figures.is_up = False
            return
        self._meters.succeed()
        if pushes:
            self._figures.succeeded += 1
            if not self._figures.is_up:
                logger.info("the quota store is there again; quotas are those of all its servers together")
            self._figures.is_up = True

    async def _call(self, pushes: Sequence[Push]) -> Sequence[float]:
        try:
            with trio.fail_after(CALL_SECONDS):
                levels = await self._store.exchange(pushes)
        except trio.TooSlowError:
            raise StoreAway(f"no answer within {CALL_SECONDS:g} s") from None
        if len(levels) != len(pushes):
            raise StoreAway(f"expected {len(pushes)} levels, got {len(levels)}")
        return levels
