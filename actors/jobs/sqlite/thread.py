"""The thread of the SQLite job store: runs calls on the database, and commits those together that have gathered.

One transaction for all calls that wait costs one write to the disk for all of them. Each runs within a savepoint, so
that one that is refused changes nothing and takes no other with it. If the disk is full, each is tried alone: what is
small, or frees room, may still go.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from actors.jobs.call_thread import Call, CallThread
from protocol.errors import InsufficientStorage, Internal, text_of

T = TypeVar("T")

Run: TypeAlias = Callable[[sqlite3.Connection], Any]


class StoreThread(CallThread[Run]):
    """Owns the connection."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        super().__init__("job-store")
        self._connect = connect
        self._connection: sqlite3.Connection

    async def call(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """The result of a function of the connection, when it is on the disk; it may be run more than once. Cancelled,
        it is done or not.

        Raises:
            InsufficientStorage: the disk is full.
            Internal: the database has failed, or is closed.
        """
        result: T = await self.result(run)
        return result

    def connect(self) -> None:
        self._connection = self._connect()

    def disconnect(self) -> None:
        self._connection.close()

    def make(self, calls: Sequence[Call[Run]]) -> None:
        left = [call for call in calls if not call.is_dropped]
        if not _commit(self._connection, left) and len(left) > 1:
            for call in left:
                _commit(self._connection, [call])

    def told(self, error: BaseException) -> BaseException:
        if not isinstance(error, sqlite3.Error):
            return error
        if error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE):
            return InsufficientStorage("there is no room on the disk of the job store")
        return Internal(f"the job store failed: {text_of(error)}")


def _commit(connection: sqlite3.Connection, calls: Sequence[Call[Run]]) -> bool:
    """Run the calls in one transaction; returns whether that has not failed as a whole."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for call in calls:
            _run_one(connection, call)
        connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        for call in calls:
            call.result, call.error = None, error
        return False
    return True


def _run_one(connection: sqlite3.Connection, call: Call[Run]) -> None:
    """Raises what ends the whole transaction."""
    call.result = call.error = None
    connection.execute("SAVEPOINT one")
    try:
        call.result = call.what(connection)
    except sqlite3.Error:
        raise
    except BaseException as error:
        connection.execute("ROLLBACK TO one")
        call.error = error
    connection.execute("RELEASE one")
