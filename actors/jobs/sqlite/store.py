"""The SQLite job store: the calls of `protocol.jobs.store.JobStore` as transactions of its thread, and files.

Owned by the server's jobs. One server has its folder at a time. Reading and writing of files is done in threads of
Trio's, apart from the database.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

import trio

from actors.jobs.sqlite import changes, deliveries, queries, sources
from actors.jobs.sqlite.batch_store import SqliteBatches
from actors.jobs.sqlite.changes import NOTHING, Kept
from actors.jobs.sqlite.files import LARGE, PayloadFiles, lasting_secret
from actors.jobs.sqlite.room import unused_bytes
from actors.jobs.sqlite.rows import find_job
from actors.jobs.sqlite.schema import open_database
from actors.jobs.sqlite.thread import StoreThread
from actors.jobs.sqlite.uploads import Uploads, check_disk
from protocol.errors import InsufficientStorage, Internal, NotFound
from protocol.jobs.job import ItemError, Job
from protocol.jobs.source import Progress
from protocol.jobs.states import JobState
from protocol.jobs.store import Claim, Item, JobFilter, Limits, NewItem, NewJob, Outcome, StoreFigures, UnusableStore
from protocol.jobs.webhook import Delivery, DeliveryRoom
from protocol.messages import Buffer

logger = logging.getLogger(__name__)

_KEPT_AT_ONCE = 250
# So many small ones are kept without a thread.
_KEPT_HERE = 64


class SqliteStore(SqliteBatches):
    """Implements `protocol.jobs.store.JobStore` in a folder, and `protocol.jobs.batches.store.BatchStore`."""

    def __init__(self, folder: Path, limits: Limits = Limits()) -> None:  # noqa: B008 (frozen)
        self._folder = folder
        self._limits = limits
        self._files = PayloadFiles(folder / "payloads")
        self._thread = StoreThread(partial(open_database, folder / "jobs.sqlite3"))
        self._uploads = Uploads()
        self._lock: TextIO | None = None

    async def open(self, now: float) -> None:
        try:
            await trio.to_thread.run_sync(self._open_folder)
        except OSError as error:
            reason = error.strerror or error
            raise UnusableStore(f"the job store '{self._folder}' cannot be opened: {reason}") from None
        await self._thread.open()
        requeued = await self._thread.call(lambda db: changes.recover(db, self._limits, now))
        if requeued:
            logger.info("%d requests of jobs that the end of the server has interrupted are queued again", requeued)
        known = await self._thread.call(queries.files)
        stray = await trio.to_thread.run_sync(self._files.sweep, known)
        if stray:
            logger.info("%d files of no job were removed from the job store", stray)

    async def close(self) -> None:
        await self._thread.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def add(self, job: NewJob, now: float) -> tuple[Job, bool]:
        kept: list[Kept] = []
        is_made = False

        def add(db: sqlite3.Connection) -> tuple[Job, bool, list[str]]:
            check_disk(self._folder, self._limits, unused_bytes(db))
            return changes.add(db, job, kept, self._limits, now)

        # Shielded: whether its files are to be removed must be known. Takes as long as the disk.
        with trio.CancelScope(shield=True):
            try:
                await self._keep_all([item.request for item in job.items], kept)
                try:
                    made, is_made, dropped = await self._thread.call(add)
                except InsufficientStorage:  # more has to be forgotten than one transaction does
                    await self._make_room(sum(each.size for each in kept), "the job")
                    made, is_made, dropped = await self._thread.call(add)
            finally:
                if not is_made:
                    await self._remove([each.file for each in kept if each.file is not None])
            await self._remove(dropped)
            while kept:  # to free many at once takes long
                del kept[-_KEPT_AT_ONCE:]
                await trio.lowlevel.checkpoint()
        return made, is_made

    async def find(self, owner: str | None, job_id: str) -> Job | None:
        found = await self._thread.call(lambda db: find_job(db, owner, job_id))
        return None if found is None else found.job

    async def jobs(self, owner: str, which: JobFilter, after: str, limit: int) -> Sequence[Job]:
        return await self._thread.call(lambda db: queries.jobs(db, owner, which, after, limit))

    async def items(self, job_id: str, first: int, limit: int, *, results: bool = False) -> Sequence[Item]:
        rows = await self._thread.call(lambda db: queries.items(db, job_id, first, limit, results))
        try:
            return [
                row.item if row.file is None else replace(row.item, result=await self._read(row.file)) for row in rows
            ]
        except FileNotFoundError:
            raise NotFound(f"job '{job_id}' has been removed") from None

    async def claim(self, room: Mapping[str, int], default: int, now: float) -> Sequence[Claim]:
        return await self._thread.call(lambda db: changes.claim(db, room, default, now))

    async def request(self, claim: Claim) -> Buffer:
        if claim.place == "":
            return claim.request
        try:
            return await self._read(claim.place)
        except OSError as error:
            raise Internal(f"the request could not be read from the job store: {error.strerror or error}") from None

    async def finish(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Job | None]:
        results: list[Kept] = []
        is_done = False
        with trio.CancelScope(shield=True):  # as in `add`
            try:
                await self._keep_all([outcome.result for outcome in outcomes], results)
                told = [each if outcome.result else NOTHING for outcome, each in zip(outcomes, results, strict=True)]
                jobs, dropped = await self._thread.call(lambda db: changes.finish(db, outcomes, told, now))
                is_done = True
            finally:
                if not is_done:
                    await self._remove([each.file for each in results if each.file is not None])
            await self._remove(dropped)
        return jobs

    async def cancel(self, owner: str, job_id: str, now: float) -> Job | None:
        return await self._thread.call(lambda db: changes.cancel(db, owner, job_id, now))

    async def remove(self, owner: str, job_id: str) -> bool:
        removed, dropped = await self._thread.call(lambda db: changes.remove(db, owner, job_id))
        await self._remove(dropped)
        return removed

    async def expire(self, now: float) -> Sequence[str]:
        ended, dropped = await self._thread.call(lambda db: changes.expire(db, self._limits, now))
        await self._remove(dropped)
        return ended

    async def sources(self) -> Sequence[tuple[Job, Progress]]:
        return await self._thread.call(sources.sources)

    async def extend(
        self, job_id: str, items: Sequence[NewItem], progress: Progress, now: float, error: ItemError | None = None
    ) -> Job | None:
        kept: list[Kept] = []
        is_added = False

        def extend(db: sqlite3.Connection) -> tuple[Job | None, bool, list[str]]:
            check_disk(self._folder, self._limits, unused_bytes(db))
            return sources.extend(db, job_id, items, kept, progress, error, self._limits, now)

        with trio.CancelScope(shield=True):  # as in `add`
            try:
                await self._keep_all([item.request for item in items], kept)
                job, is_added, dropped = await self._thread.call(extend)
            finally:
                if not is_added:
                    await self._remove([each.file for each in kept if each.file is not None])
            await self._remove(dropped)
        return job

    async def drain(self, job_id: str, progress: Progress, now: float) -> Job | None:
        job, dropped = await self._thread.call(lambda db: sources.drain(db, job_id, progress))
        await self._remove(dropped)
        return job

    async def close_source(
        self, job_id: str, now: float, state: JobState | None = None, error: ItemError | None = None
    ) -> Job | None:
        job, dropped = await self._thread.call(lambda db: sources.close(db, job_id, state, error, now))
        await self._remove(dropped)
        return job

    async def figures(self) -> StoreFigures:
        return await self._thread.call(queries.figures)

    async def claim_deliveries(self, room: DeliveryRoom, now: float, until: float) -> Sequence[Delivery]:
        return await self._thread.call(lambda db: deliveries.claim(db, room, now, until))

    async def settle_delivery(self, delivery: Delivery, again: float | None) -> None:
        await self._thread.call(lambda db: deliveries.settle(db, delivery, again))

    async def link_secret(self) -> bytes:
        try:
            return await trio.to_thread.run_sync(lasting_secret, self._folder / "link-secret")
        except OSError as error:
            raise InsufficientStorage(
                f"the secret of links to results cannot be kept in the job store: {error.strerror or error}"
            ) from None

    def _open_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = (self._folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            self._lock = None
            raise UnusableStore(
                f"the job store '{self._folder}' is in use by another server; give each a folder of its own"
            ) from None
        self._files.open()

    async def _keep_all(self, all_parts: Sequence[Sequence[Buffer]], kept: list[Kept]) -> None:
        """Fill `kept`, also where it fails in the middle. Raises InsufficientStorage."""
        if len(all_parts) <= _KEPT_HERE and all(_size(parts) <= LARGE for parts in all_parts):
            kept += map(self._kept, all_parts)
            return

        def keep_some(some: Sequence[Sequence[Buffer]]) -> None:
            sizes = [_size(parts) for parts in some]
            large = [parts for parts, size in zip(some, sizes, strict=True) if size > LARGE]
            with _told_of_disk(sum(sizes)):
                names = iter(self._files.write_all(large))
            for parts, size in zip(some, sizes, strict=True):
                kept.append(Kept(size, None, next(names)) if size > LARGE else self._kept(parts))

        for first in range(0, len(all_parts), _KEPT_AT_ONCE):  # Python in a thread shares the interpreter with the loop
            await trio.to_thread.run_sync(keep_some, all_parts[first : first + _KEPT_AT_ONCE])

    def _kept(self, parts: Sequence[Buffer]) -> Kept:
        """Blocks where that is large. Raises InsufficientStorage."""
        size = _size(parts)
        if size <= LARGE:
            return Kept(size, b"".join(parts), None)
        with _told_of_disk(size):
            return Kept(size, None, self._files.write(parts))

    async def _read(self, name: str) -> bytes:
        return await trio.to_thread.run_sync(self._files.read, name)


def _size(parts: Sequence[Buffer]) -> int:
    return sum(memoryview(part).nbytes for part in parts)


@contextmanager
def _told_of_disk(size: int) -> Iterator[None]:
    """Raises InsufficientStorage in place of the system's own errors."""
    try:
        yield
    except OSError as error:
        raise InsufficientStorage(
            f"{size} bytes could not be written to the job store: {error.strerror or error}"
        ) from None
