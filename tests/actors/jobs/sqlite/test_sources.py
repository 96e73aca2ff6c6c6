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
from protocol.jobs.job import ItemError, Job
from protocol.jobs.source import DataFormat, DataPlace, JobSource, Position, Progress
from protocol.jobs.states import JobState
from protocol.jobs.store import Limits, NewItem, NewJob, Outcome
from tests.actors.jobs.sqlite.test_store import LIMITS, NOW, new, opened
from tests.actors.jobs.stores import finish_one

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
        job = await finish_one(store, Outcome(claim.job_id, claim.index, claim.claim, state, parts), NOW)
    return job


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
