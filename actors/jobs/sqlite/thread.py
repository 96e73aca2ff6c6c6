"""The thread of a job store: runs calls on the database, and commits those together that have gathered.

One transaction for all calls that wait costs one write to the disk for all of them. Each runs within a savepoint, so
that one that is refused changes nothing and takes no other with it. If the disk is full, each is tried alone: what is
small, or frees room, may still go.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio

from protocol.errors import InsufficientStorage, Internal, text_of

T = TypeVar("T")

# Calls that wait, or are committed together.
MAX_WAITING = 1024
MAX_TOGETHER = 256


@dataclass(slots=True, eq=False)
class _Call:
    """`is_dropped` where its caller has gone before it began."""

    run: Callable[[sqlite3.Connection], Any]
    done: trio.Event = field(default_factory=trio.Event)
    result: Any = None
    error: BaseException | None = None
    is_dropped: bool = False


class StoreThread:
    """Owns the connection. Started and closed by the store, which is called on one Trio loop."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._room = trio.Semaphore(MAX_WAITING)
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._is_closed = False

    async def open(self) -> None:
        """Raises what `connect` raises."""
        self._token = trio.lowlevel.current_trio_token()
        opened = trio.Event()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="job-store", daemon=True)
        self._thread.start()
        await opened.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """What was called is done first."""
        self._is_closed = True
        if self._thread is not None:
            self._calls.put(None)
            await trio.to_thread.run_sync(self._thread.join)

    async def call(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """The result of a function of the connection, when it is on the disk; it may be run more than once. Cancelled,
        it is done or not.

        Raises:
            InsufficientStorage: the disk is full.
            Internal: the database has failed, or is closed.
        """
        async with self._room:
            if self._is_closed:
                raise Internal("the job store is closed")
            call = _Call(run)
            self._calls.put(call)
            try:
                await call.done.wait()
            except trio.Cancelled:
                call.is_dropped = True
                raise
        if call.error is not None:
            raise _told(call.error)
        result: T = call.result
        return result

    def _run(self, opened: trio.Event) -> None:
        assert self._token is not None
        connection = None
        try:
            connection = self._connect()
        except BaseException as error:
            self._failure = error
        self._tell(opened.set)
        if connection is None:
            return
        try:
            while calls := self._gathered():
                _run_together(connection, calls)
                done = [call.done for call in calls]
                self._tell(lambda done=done: [event.set() for event in done])  # type: ignore[misc]
        finally:
            connection.close()

    def _gathered(self) -> Sequence[_Call]:
        """What waits, after waiting for the first; nothing when the thread is to end."""
        first = self._calls.get()
        calls = [] if first is None else [first]
        while calls and len(calls) < MAX_TOGETHER:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                break
            if call is None:
                self._calls.put(None)  # the end, once these are done
                break
            calls.append(call)
        return calls

    def _tell(self, what: Callable[[], object]) -> None:
        assert self._token is not None
        with suppress(trio.RunFinishedError):  # nobody waits any more
            self._token.run_sync_soon(what)


def _run_together(connection: sqlite3.Connection, calls: Sequence[_Call]) -> None:
    left = [call for call in calls if not call.is_dropped]
    if not _commit(connection, left) and len(left) > 1:
        for call in left:
            _commit(connection, [call])


def _commit(connection: sqlite3.Connection, calls: Sequence[_Call]) -> bool:
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


def _run_one(connection: sqlite3.Connection, call: _Call) -> None:
    """Raises what ends the whole transaction."""
    call.result = call.error = None
    connection.execute("SAVEPOINT one")
    try:
        call.result = call.run(connection)
    except sqlite3.Error:
        raise
    except BaseException as error:
        connection.execute("ROLLBACK TO one")
        call.error = error
    connection.execute("RELEASE one")


def _told(error: BaseException) -> BaseException:
    if not isinstance(error, sqlite3.Error):
        return error
    if error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE):
        return InsufficientStorage("there is no room on the disk of the job store")
    return Internal(f"the job store failed: {text_of(error)}")
