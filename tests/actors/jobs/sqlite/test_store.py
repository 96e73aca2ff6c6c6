"""The SQLite job store: what outlives a crash, what is committed together, large files, a full disk, one owner."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from actors.jobs.sqlite.files import LARGE
from actors.jobs.sqlite.room import unused_bytes
from actors.jobs.sqlite.schema import _JOBS, VERSION
from actors.jobs.sqlite.store import SqliteStore
from actors.jobs.sqlite.uploads import check_disk
from protocol.errors import InsufficientStorage, Internal
from protocol.jobs.job import Job, new_job_id
from protocol.jobs.states import JobState
from protocol.jobs.store import IdempotencyMismatch, Limits, NewItem, NewJob, Outcome, UnusableStore
from protocol.jobs.webhook import DeliveryRoom, Webhook
from protocol.messages import Buffer
from tests.actors.jobs.stores import finish_one

LIMITS = Limits(reserve=0)
NOW = 1_800_000_000.0
ROOM = DeliveryRoom(total=64, per_host=4, per_owner=32)


@asynccontextmanager
async def opened(folder: Path, limits: Limits = LIMITS) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(folder, limits)
    await store.open(NOW)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.close()


def new(*requests: bytes, owner: str = "ann", key: str = "", fingerprint: bytes = b"") -> NewJob:
    items = [NewItem("m", [request]) for request in requests]
    return NewJob(new_job_id(NOW), owner, items, NOW + 100, model="m", key=key, fingerprint=fingerprint)


async def succeed(store: SqliteStore, result: bytes) -> Job:
    (claim,) = await store.claim({}, 1, NOW)
    done = await finish_one(store, Outcome(claim.job_id, claim.index, claim.claim, JobState.SUCCEEDED, [result]), NOW)
    assert done is not None
    return done


async def test_large_payloads_are_files_that_go_with_their_job(tmp_path: Path) -> None:
    large = os.urandom(LARGE + 1)
    payloads = tmp_path / "payloads"
    async with opened(tmp_path) as store:
        job, _ = await store.add(new(large), NOW)
        assert len(list(payloads.iterdir())) == 1
        (claim,) = await store.claim({}, 1, NOW)
        assert await store.request(claim) == large
        result: list[Buffer] = [memoryview(large), b"more"]
        await finish_one(store, Outcome(job.id, 0, claim.claim, JobState.SUCCEEDED, result), NOW)
        (item,) = await store.items(job.id, 0, 1, results=True)
        assert item.result == large + b"more"
        stale = Outcome(job.id, 0, claim.claim, JobState.SUCCEEDED, result)
        assert await finish_one(store, stale, NOW) is None
        assert len(list(payloads.iterdir())) == 2
        assert (await store.figures()).byte_size == 2 * len(large) + 4
        assert await store.remove("ann", job.id)
        assert list(payloads.iterdir()) == []
        assert (await store.figures()).byte_size == 0


async def test_files_that_no_row_names_are_swept(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        job, _ = await store.add(new(bytes(LARGE + 1)), NOW)
    for stray in ("0123", "4567.part"):
        (tmp_path / "payloads" / stray).write_bytes(b"what a crash has left")
    async with opened(tmp_path) as store:
        assert len(list((tmp_path / "payloads").iterdir())) == 1
        (claim,) = await store.claim({}, 1, NOW)
        assert await store.request(claim) == bytes(LARGE + 1)
        assert claim.job_id == job.id


async def test_a_request_whose_file_is_gone_is_an_error_of_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.add(new(bytes(LARGE + 1)), NOW)
        (file,) = (tmp_path / "payloads").iterdir()
        file.unlink()
        (claim,) = await store.claim({}, 1, NOW)
        with pytest.raises(Internal, match="the request could not be read from the job store: No such file"):
            await store.request(claim)


async def test_an_idempotency_key_is_its_owners(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        first, is_made = await store.add(new(b"a", key="k", fingerprint=b"1"), NOW)
        again, is_made_again = await store.add(new(b"a", key="k", fingerprint=b"1"), NOW)
        assert (is_made, is_made_again, again.id) == (True, False, first.id)
        with pytest.raises(IdempotencyMismatch, match="'k' was used for another request"):
            await store.add(new(bytes(LARGE + 1), key="k", fingerprint=b"2"), NOW)
        assert list((tmp_path / "payloads").iterdir()) == []
        other, is_made = await store.add(new(b"a", owner="bob", key="k", fingerprint=b"2"), NOW)
        assert is_made
        assert other.id != first.id


async def test_a_folder_has_one_server(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(UnusableStore, match="is in use by another server"):
            await SqliteStore(tmp_path).open(NOW)
    async with opened(tmp_path):
        pass


async def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    with sqlite3.connect(tmp_path / "jobs.sqlite3") as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    store = SqliteStore(tmp_path)
    reason = f"has version {VERSION + 1} and this server reads versions up to {VERSION}"
    with pytest.raises(UnusableStore, match=reason):
        await store.open(NOW)
    await store.close()


async def test_a_database_of_an_earlier_version_is_brought_up_to_date(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "jobs.sqlite3")
    db.executescript(f"{_JOBS}PRAGMA user_version = 1;")
    db.execute(
        "INSERT INTO jobs (id, owner, model, version, state, queued, created, deadline, bytes, metadata) "
        f"VALUES ('job_1', 'ann', 'm', -1, 'queued', 1, {NOW}, {NOW + 100}, 1, '{{}}')"
    )
    db.execute(
        "INSERT INTO items (job, place, model, state, not_before, custom_id, form, request, request_bytes) "
        f"VALUES (1, 0, 'm', 'queued', {NOW}, '', x'', x'61', 1)"
    )
    db.execute("INSERT INTO job_counts VALUES ('queued', 1)")
    db.commit()
    db.close()
    for _ in range(2):
        async with opened(tmp_path) as store:
            assert (await store.find("ann", "job_1")) is not None
    async with opened(tmp_path) as store:
        assert (await succeed(store, b"result")).id == "job_1"
        job, _ = await store.add(replace(new(b"a"), webhook=Webhook("https://a/", "https://a")), NOW)
        assert (await succeed(store, b"result")).id == job.id
        assert [each.job.id for each in await store.claim_deliveries(ROOM, NOW, NOW + 60)] == [job.id]


async def test_what_is_no_database_or_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.sqlite3").write_bytes(b"something else" * 1000)
    store = SqliteStore(tmp_path)
    with pytest.raises(UnusableStore, match="cannot be opened: file is not a database"):
        await store.open(NOW)
    await store.close()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnusableStore, match="cannot be opened"):
        await SqliteStore(tmp_path / "file").open(NOW)


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        pass
    with pytest.raises(Internal, match="the job store is closed"):
        await store.figures()


async def test_a_reserve_of_the_disk_is_for_what_runs(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.add(new(b"a"), NOW)
    async with opened(tmp_path, replace(LIMITS, reserve=1 << 62)) as store:
        with pytest.raises(InsufficientStorage, match="are kept free for the results of jobs that run"):
            await store.add(new(b"b"), NOW)
        assert (await succeed(store, b"result")).state is JobState.SUCCEEDED


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a file system of its own can be mounted by root only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Raises OSError when the disk is full."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def test_a_full_disk_refuses_and_recovers_by_itself(small_disk: Path) -> None:
    async with opened(small_disk) as store:
        job, _ = await store.add(new(b"a"), NOW)
        (claim,) = await store.claim({}, 1, NOW)
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space left"):
            fill(filler)
        with pytest.raises(InsufficientStorage):
            await store.add(new(bytes(50_000)), NOW)
        with pytest.raises(InsufficientStorage, match="could not be written to the job store: No space left"):
            await store.add(new(bytes(100_000)), NOW)
        outcome = Outcome(job.id, 0, claim.claim, JobState.SUCCEEDED, [bytes(50_000)])
        with pytest.raises(InsufficientStorage):
            await finish_one(store, outcome, NOW)
        found = await store.find("ann", job.id)
        assert found is not None
        assert found.state is JobState.RUNNING
        filler.unlink()
        done = await finish_one(store, outcome, NOW)
        assert done is not None
        assert done.state is JobState.SUCCEEDED
        await store.add(new(bytes(100_000)), NOW)


async def test_the_secret_of_links_is_made_once_and_read_by_nobody_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        secret = await store.link_secret()
        assert await store.link_secret() == secret
    async with opened(tmp_path) as store:
        assert await store.link_secret() == secret
    assert len(secret) >= 32
    assert (tmp_path / "link-secret").stat().st_mode & 0o777 == 0o600
    async with opened(tmp_path / "other") as other:
        assert await other.link_secret() != secret


def test_what_the_database_has_to_spare_is_room(tmp_path: Path) -> None:
    """Its file never becomes smaller: else a disk that jobs have filled would refuse new ones when those are gone."""
    with closing(sqlite3.connect(tmp_path / "db")) as db:
        db.execute("CREATE TABLE t (data BLOB)")
        db.executemany("INSERT INTO t VALUES (?)", [(bytes(20_000),)] * 50)
        db.commit()
        assert unused_bytes(db) == 0
        db.execute("DELETE FROM t")
        db.commit()
        assert unused_bytes(db) > 900_000
    limits = replace(LIMITS, reserve=1 << 62)
    with pytest.raises(InsufficientStorage, match="are kept free for the results of jobs that run"):
        check_disk(tmp_path, limits, 900_000)
    check_disk(tmp_path, limits, limits.reserve)
