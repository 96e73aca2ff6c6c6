"""Jobs with a source in the SQLite store: items that come and go, what is counted, and how they end."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.jobs.sqlite import schema
from actors.jobs.sqlite.files import LARGE
from actors.jobs.sqlite.store import SqliteStore
from protocol.errors import InsufficientStorage
from protocol.jobs.job import Counts, ItemError, Job
from protocol.jobs.source import DataFormat, DataPlace, JobSource, Position, Progress
from protocol.jobs.states import JobState
from protocol.jobs.store import Limits, NewItem, NewJob, Outcome
from tests.actors.jobs.sqlite.test_store import LIMITS, NOW, new, opened

SOURCE = JobSource("m", DataPlace("/in", DataFormat.NPZ), DataPlace("/out", DataFormat.JSON_LINES))
LATER = NOW + 1


async def add(store: SqliteStore) -> Job:
    job, _ = await store.add(NewJob("job_1", "ann", (), NOW + 100, model="m", source=SOURCE), NOW)
    return job


def at(row: int, written: int = 0, *, is_read: bool = False) -> Progress:
    return Progress(Position(row, "a", "1", row), is_read, written)


def items(*requests: bytes) -> list[NewItem]:
    """An empty one is a row that could not be read."""
    bad = ItemError("INVALID_ARG", "no")
    return [
        NewItem("m", [request], custom_id=request[:1].decode()) if request else NewItem("m", [], error=bad)
        for request in requests
    ]


async def finish(store: SqliteStore, state: JobState, results: Sequence[bytes]) -> Job | None:
    job = None
    for claim, result in zip(await store.claim({"m": len(results)}, 1, NOW), results, strict=True):
        parts = [result] if state is JobState.SUCCEEDED else []
        job = await store.finish(Outcome(claim.job_id, claim.index, claim.claim, state, parts), NOW)
    return job


async def test_items_come_are_run_and_go(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        made = await add(store)
        assert (made.state, made.counts, made.source) == (JobState.QUEUED, Counts(), SOURCE)
        job = await store.extend(made.id, items(b"aa", b"", b"cc"), at(3), NOW)
        assert job is not None
        assert (job.counts, job.byte_size) == (Counts(queued=2, failed=1), 4)
        assert job.error == ItemError("INVALID_ARG", "no")
        job = await finish(store, JobState.SUCCEEDED, [b"rrr", b"sss"])
        assert job is not None
        assert (job.state, job.counts, job.byte_size) == (JobState.RUNNING, Counts(succeeded=2, failed=1), 10)
        job = await store.drain(made.id, at(3, 2), NOW)
        assert job is not None
        assert (job.written, job.byte_size, job.counts) == (2, 5, Counts(succeeded=2, failed=1))
        assert [item.index for item in await store.items(made.id, 0, 10)] == [2]
    async with opened(tmp_path) as store:
        ((job, progress),) = await store.sources()
        assert (job.state, progress) == (JobState.QUEUED, at(3, 2))
        await store.extend(made.id, items(b"d"), at(4, 2, is_read=True), NOW)
        assert [item.index for item in await store.items(made.id, 0, 10)] == [2, 3]
        await finish(store, JobState.SUCCEEDED, [b"t"])
        job = await store.close_source(made.id, LATER)
        assert job is not None
        assert (job.state, job.ended, job.byte_size) == (JobState.SUCCEEDED, LATER, 0)
        assert await store.sources() == []
        assert await store.items(made.id, 0, 10) == []
        assert await store.remove("ann", made.id)
        assert (await store.figures()).byte_size == 0


async def test_large_requests_and_results_are_files_that_go(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        job = await add(store)
        await store.extend(job.id, items(b"x" * (LARGE + 1)), at(1), NOW)
        await finish(store, JobState.SUCCEEDED, [b"y" * (LARGE + 1)])
        assert len(os.listdir(tmp_path / "payloads")) == 2
        await store.drain(job.id, at(1, 1), NOW)
        assert os.listdir(tmp_path / "payloads") == []


async def test_what_finds_no_room_is_not_added(tmp_path: Path) -> None:
    async with opened(tmp_path, Limits(byte_size=3 * LARGE, reserve=0)) as store:
        job = await add(store)
        await store.extend(job.id, items(b"x" * 2 * LARGE), at(1), NOW)
        with pytest.raises(InsufficientStorage):
            await store.extend(job.id, items(b"y" * 2 * LARGE), at(2), NOW)
        ((found, progress),) = await store.sources()
        assert (progress, found.counts.total) == (at(1), 1)
        assert len(os.listdir(tmp_path / "payloads")) == 1


async def test_a_job_that_is_cancelled_ends_when_it_is_closed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        made = await add(store)
        await store.extend(made.id, items(b"a", b"b", b"c"), at(3), NOW)
        (claim, other) = await store.claim({"m": 2}, 1, NOW)
        job = await store.cancel("ann", made.id, NOW)
        assert job is not None
        assert (job.state, job.counts) == (JobState.CANCELLING, Counts(running=2, cancelled=1))
        job = await store.extend(made.id, items(b"d"), at(4), NOW)
        assert job is not None
        assert job.counts.total == 3
        job = await store.close_source(made.id, NOW, JobState.EXPIRED)
        assert job is not None
        assert job.state is JobState.CANCELLING
        for each in (claim, other):
            await store.finish(Outcome(made.id, each.index, each.claim, JobState.CANCELLED), NOW)
        job = await store.close_source(made.id, NOW, JobState.EXPIRED)
        assert job is not None
        assert (job.state, job.counts) == (JobState.CANCELLED, Counts(cancelled=3))


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_job_of_which_nothing_runs_is_cancelled_and_closed(tmp_path: Path, is_restarted: bool) -> None:
    async with opened(tmp_path) as store:
        made = await add(store)
        job = await store.cancel("ann", made.id, NOW)
        assert job is not None
        assert job.state is JobState.CANCELLING
        assert not await store.remove("ann", made.id)
        if not is_restarted:
            job = await store.close_source(made.id, NOW)
            assert job is not None
            assert job.state is JobState.CANCELLED
    async with opened(tmp_path) as store:
        assert [job.state for job, _ in await store.sources()] == [JobState.CANCELLING] * is_restarted


async def test_what_is_queued_beyond_the_deadline_expires(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        made = await add(store)
        await store.extend(made.id, items(b"a", b"b"), at(2), NOW)
        assert await store.expire(NOW + 101) == []
        job = await store.close_source(made.id, NOW + 101, JobState.EXPIRED)
        assert job is not None
        assert (job.state, job.counts) == (JobState.EXPIRED, Counts(expired=2))


async def test_a_fault_ends_a_job(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        made = await add(store)
        await store.extend(made.id, items(b"a", b"b"), at(2), NOW)
        error = ItemError("NOT_FOUND", "gone")
        job = await store.close_source(made.id, NOW, JobState.FAILED, error)
        assert job is not None
        assert (job.state, job.error, job.counts) == (JobState.FAILED, error, Counts(cancelled=2))
        assert await store.close_source(made.id, NOW) == job


async def test_jobs_that_are_gone(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        assert await store.extend("job_0", items(b"a"), at(1), NOW) is None
        assert await store.drain("job_0", at(1, 1), NOW) is None
        assert await store.close_source("job_0", NOW) is None


@pytest.mark.parametrize("version", [1, 2])
async def test_a_database_of_an_older_version_goes_on(tmp_path: Path, version: int) -> None:
    with sqlite3.connect(tmp_path / "jobs.sqlite3", isolation_level=None) as db:
        db.execute("PRAGMA journal_mode = WAL")
        for step in schema._STEPS[:version]:
            db.executescript(step)
        db.execute(f"PRAGMA user_version = {version}")
        db.execute(
            "INSERT INTO jobs (id, owner, model, version, state, queued, created, deadline, bytes, metadata) "
            "VALUES ('job_0', 'ann', 'm', -1, 'queued', 1, 1, 2e9, 3, '{}')"
        )
        db.execute(
            "INSERT INTO items (job, place, model, state, not_before, custom_id, form, request, request_bytes) "
            "VALUES (1, 0, 'm', 'queued', 1, '', x'', x'616263', 3)"
        )
        db.execute("INSERT INTO job_counts VALUES ('queued', 1)")
    db.close()
    async with opened(tmp_path, LIMITS) as store:
        job = await finish(store, JobState.SUCCEEDED, [b"done"])
        assert job is not None
        assert (job.state, job.source, job.written) == (JobState.SUCCEEDED, None, 0)
        await store.add(new(b"more"), NOW)
        await add(store)
