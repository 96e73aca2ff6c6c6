"""The store of quotas, as its users see it: what it is asked, how long that may take, and what is told of outages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from protocol.quotas.leases import Claim, Grant
from protocol.quotas.shared import Push

logger = logging.getLogger(__name__)

# Of one call: a store does nothing else meanwhile.
MOST_AT_ONCE = 500
# How long one call may take, with the search for the host's address.
CALL_SECONDS = 2.0
# Between two attempts while the store is away, if that is longer than the interval.
RETRY_SECONDS = 1.0

Told = TypeVar("Told")
Answer = TypeVar("Answer")


class StoreAway(Exception):
    """The store has not answered, or not as it should; whether it has taken what it was told is not known."""


class QuotaStore(Protocol):
    """Keeps how much of each limit is used."""

    async def exchange(self, pushes: Sequence[Push]) -> Sequence[float]:
        """Add to each level what is pushed; returns the levels. Raises StoreAway."""

    async def lease(self, claims: Sequence[Claim]) -> Sequence[Grant]:
        """Lease places to this server, in place of those that it has, for `leases.LEASE_SECONDS`. Raises StoreAway."""

    async def close(self) -> None:
        """To be called once, at the end."""


@dataclass(slots=True)
class ExchangeFigures:
    """For the metrics: exchanges so far, by how they went, whether the last one succeeded, and the limits in use."""

    succeeded: int = 0
    failed: int = 0
    is_up: bool = True
    limits: int = 0


class Outages:
    """Logs and counts, of one kind of call, when the store goes away and when it is there again."""

    def __init__(self, alone: str, together: str) -> None:
        """`alone` and `together` end the lines: what is so in an outage, and what behind it."""
        self.succeeded = 0
        self.failed = 0
        self.is_up = True
        self._alone, self._together = alone, together

    def note_failure(self, error: StoreAway) -> None:
        self.failed += 1
        if self.is_up:
            logger.error("the quota store: %s; until it is there again this server counts %s", error, self._alone)
        self.is_up = False

    def note_success(self) -> None:
        self.succeeded += 1
        if not self.is_up:
            logger.info("the quota store is there again; %s", self._together)
        self.is_up = True


async def ask(call: Callable[[Sequence[Told]], Awaitable[Sequence[Answer]]], told: Sequence[Told]) -> Sequence[Answer]:
    """The answers of one call, one to each. Raises StoreAway, also where it takes too long."""
    try:
        with trio.fail_after(CALL_SECONDS):
            answers = await call(told)
    except trio.TooSlowError:
        raise StoreAway(f"no answer within {CALL_SECONDS:g} s") from None
    if len(answers) != len(told):
        raise StoreAway(f"expected {len(told)} answers, got {len(answers)}")
    return answers
