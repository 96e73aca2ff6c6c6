"""A job store for tests in virtual time: the transactions of the SQLite store, run at once and without its thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from actors.jobs.sqlite import changes, deliveries, queries, sources
from actors.jobs.sqlite.changes import NOTHING, Kept
from actors.jobs.sqlite.rows import find_job
from actors.jobs.sqlite.schema import open_database
from protocol.errors import InsufficientStorage
from protocol.jobs.job import ItemError, Job
from protocol.jobs.source import Progress
from protocol.jobs.states import JobState
from protocol.jobs.store import Claim, Item, JobFilter, Limits, NewItem, NewJob, Outcome, StoreFigures
from protocol.jobs.webhook import Delivery, DeliveryRoom
from protocol.messages import Buffer

T = TypeVar("T")


class DirectStore:
    """Implements `protocol.jobs.store.JobStore`. While `is_full`, nothing can be written."""

    def __init__(self, folder: Path, limits: Limits = Limits()) -> None:  # noqa: B008 (frozen)
        self.limits = limits
        self.is_full = False
        self._path = folder / "jobs.sqlite3"
        self.db: sqlite3.Connection

    async def open(self, now: float) -> None:
        self.db = open_database(self._path)
        self.db.execute("PRAGMA synchronous = OFF")
        await self._write(lambda: changes.recover(self.db, self.limits, now))

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.db.close()

    async def add(self, job: NewJob, now: float) -> tuple[Job, bool]:
        kept = [_kept(item.request) for item in job.items]
        made, is_new, _ = await self._write(lambda: changes.add(self.db, job, kept, self.limits, now))
        return made, is_new

    async def find(self, owner: str | None, job_id: str) -> Job | None:
        await trio.lowlevel.checkpoint()
        found = find_job(self.db, owner, job_id)
        return None if found is None else found.job

    async def jobs(self, owner: str, which: JobFilter, after: str, limit: int) -> Sequence[Job]:
        await trio.lowlevel.checkpoint()
        return queries.jobs(self.db, owner, which, after, limit)

    async def items(self, job_id: str, first: int, limit: int, *, results: bool = False) -> Sequence[Item]:
        await trio.lowlevel.checkpoint()
        return [row.item for row in queries.items(self.db, job_id, first, limit, results)]

    async def claim(self, room: Mapping[str, int], default: int, now: float) -> Sequence[Claim]:
        return await self._write(lambda: changes.claim(self.db, room, default, now))

    async def request(self, claim: Claim) -> Buffer:
        await trio.lowlevel.checkpoint()
        return claim.request

    async def finish(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Job | None]:
        results = [_kept(outcome.result) if outcome.result else NOTHING for outcome in outcomes]
        return (await self._write(lambda: changes.finish(self.db, outcomes, results, now)))[0]

    async def cancel(self, owner: str, job_id: str, now: float) -> Job | None:
        return await self._write(lambda: changes.cancel(self.db, owner, job_id, now))

    async def remove(self, owner: str, job_id: str) -> bool:
        return (await self._write(lambda: changes.remove(self.db, owner, job_id)))[0]

    async def expire(self, now: float) -> Sequence[str]:
        return (await self._write(lambda: changes.expire(self.db, self.limits, now)))[0]

    async def sources(self) -> Sequence[tuple[Job, Progress]]:
        await trio.lowlevel.checkpoint()
        return sources.sources(self.db)

    async def extend(
        self, job_id: str, items: Sequence[NewItem], progress: Progress, now: float, error: ItemError | None = None
    ) -> Job | None:
        kept = [_kept(item.request) for item in items]
        change = partial(sources.extend, self.db, job_id, items, kept, progress, error, self.limits, now)
        return (await self._write(change))[0]

    async def drain(self, job_id: str, progress: Progress, now: float) -> Job | None:
        return (await self._write(lambda: sources.drain(self.db, job_id, progress)))[0]

    async def close_source(
        self, job_id: str, now: float, state: JobState | None = None, error: ItemError | None = None
    ) -> Job | None:
        return (await self._write(lambda: sources.close(self.db, job_id, state, error, now)))[0]

    async def figures(self) -> StoreFigures:
        await trio.lowlevel.checkpoint()
        return queries.figures(self.db)

    async def claim_deliveries(self, room: DeliveryRoom, now: float, until: float) -> Sequence[Delivery]:
        return await self._write(lambda: deliveries.claim(self.db, room, now, until))

    async def settle_delivery(self, delivery: Delivery, again: float | None) -> None:
        await self._write(lambda: deliveries.settle(self.db, delivery, again))

    async def link_secret(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return b"s" * 32

    async def _write(self, change: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        if self.is_full:
            raise InsufficientStorage("there is no room on the disk of the job store")
        self.db.execute("BEGIN IMMEDIATE")
        try:
            result = change()
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")
        return result


def _kept(parts: Sequence[Buffer]) -> Kept:
    data = b"".join(parts)
    return Kept(len(data), data, None)
