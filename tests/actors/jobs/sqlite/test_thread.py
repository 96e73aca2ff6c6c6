"""The thread of a job store: what gathers is committed together, and one call's failure is its own."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from actors.jobs.sqlite.thread import StoreThread
from protocol.errors import InsufficientStorage, Internal, NotFound


class Database:
    """A real one that notes its statements, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.statements: list[str] = []

    def connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None)
        db.execute("CREATE TABLE IF NOT EXISTS t (x UNIQUE)")
        db.set_trace_callback(self.statements.append)
        return db

    def rows(self) -> list[object]:
        with sqlite3.connect(self.path) as db:
            return [x for (x,) in db.execute("SELECT x FROM t ORDER BY x")]


class Hold:
    """A call that keeps the thread until it is told."""

    def __init__(self) -> None:
        self._began = threading.Event()
        self._may_end = threading.Event()

    async def begin(self, thread: StoreThread, nursery: trio.Nursery) -> None:
        nursery.start_soon(thread.call, self._run)
        await trio.to_thread.run_sync(self._began.wait)

    def end(self) -> None:
        self._may_end.set()

    def _run(self, db: sqlite3.Connection) -> None:
        self._began.set()
        self._may_end.wait()


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[StoreThread]:
    thread = StoreThread(database.connect)
    await thread.open()
    try:
        yield thread
    finally:
        with trio.CancelScope(shield=True):
            await thread.close()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "db")


def insert(value: object) -> Callable[[sqlite3.Connection], int]:
    return lambda db: db.execute("INSERT INTO t VALUES (?)", (value,)).rowcount


async def test_what_gathers_is_one_transaction(database: Database) -> None:
    hold = Hold()
    async with opened(database) as thread, trio.open_nursery() as nursery:
        await hold.begin(thread, nursery)
        for number in range(100):
            nursery.start_soon(thread.call, insert(number))
        await trio.testing.wait_all_tasks_blocked()
        hold.end()
    assert database.rows() == list(range(100))
    assert database.statements.count("COMMIT") == 2


async def test_a_refused_call_changes_nothing_and_takes_no_other_with_it(database: Database) -> None:
    def refused(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO t VALUES (-1)")
        raise NotFound("no")

    hold = Hold()
    refusals: list[Exception] = []

    async def call_refused() -> None:
        with pytest.raises(NotFound) as caught:
            await thread.call(refused)
        refusals.append(caught.value)

    async with opened(database) as thread, trio.open_nursery() as nursery:
        await hold.begin(thread, nursery)
        nursery.start_soon(thread.call, insert(1))
        nursery.start_soon(call_refused)
        nursery.start_soon(thread.call, insert(2))
        await trio.testing.wait_all_tasks_blocked()
        hold.end()
    assert database.rows() == [1, 2]
    assert len(refusals) == 1


async def test_a_failure_of_the_database_is_the_calls_own(database: Database) -> None:
    hold = Hold()
    failures: list[str] = []

    async def call_twice() -> None:
        with pytest.raises(Internal) as caught:
            await thread.call(insert(1))
        failures.append(caught.value.message)

    async with opened(database) as thread:
        await thread.call(insert(1))
        async with trio.open_nursery() as nursery:
            await hold.begin(thread, nursery)
            nursery.start_soon(thread.call, insert(2))
            nursery.start_soon(call_twice)
            nursery.start_soon(thread.call, insert(3))
            await trio.testing.wait_all_tasks_blocked()
            hold.end()
    assert database.rows() == [1, 2, 3]
    assert failures == ["the job store failed: IntegrityError: UNIQUE constraint failed: t.x"]


async def test_a_full_database_refuses_what_does_not_fit(database: Database) -> None:
    async with opened(database) as thread:
        await thread.call(lambda db: db.execute("PRAGMA max_page_count = 4"))
        with pytest.raises(InsufficientStorage, match="there is no room on the disk of the job store"):
            await thread.call(insert(bytes(100_000)))
        await thread.call(insert(1))
    assert database.rows() == [1]


async def test_a_call_whose_caller_has_gone_before_it_began_is_not_run(database: Database) -> None:
    hold = Hold()
    async with opened(database) as thread, trio.open_nursery() as nursery:
        await hold.begin(thread, nursery)
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_blocked, scope)
            await thread.call(insert(1))
        assert scope.cancelled_caught
        hold.end()
    assert database.rows() == []


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_a_thread_that_cannot_connect_says_why(tmp_path: Path) -> None:
    thread = StoreThread(Database(tmp_path / "no" / "folder").connect)
    with pytest.raises(sqlite3.OperationalError, match="unable to open database file"):
        await thread.open()
    await thread.close()
