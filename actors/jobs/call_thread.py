"""A thread that makes the calls of a job store, those together that have gathered meanwhile.

One exchange with the disk, or with a server, for all calls that wait costs the time of one. What a call is, and how
several are made together, the store's own thread says.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import trio

from protocol.errors import Internal

C = TypeVar("C")

# Calls that wait, or are made together.
MAX_WAITING = 1024
MAX_TOGETHER = 256


@dataclass(slots=True, eq=False)
class Call(Generic[C]):
    """`is_dropped` where its caller has gone before it began. Whoever makes it sets its result, or error."""

    what: C
    done: trio.Event = field(default_factory=trio.Event)
    result: Any = None
    error: BaseException | None = None
    is_dropped: bool = False


class CallThread(Generic[C]):
    """Started and closed by the store, which is called on one Trio loop. A subclass says what the thread does."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Call[C] | None] = queue.SimpleQueue()
        self._room = trio.Semaphore(MAX_WAITING)
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._is_closed = False

    def connect(self) -> None:
        """In the thread, before all calls. What it raises `open` raises."""

    def disconnect(self) -> None:
        """In the thread, after all calls."""

    def make(self, calls: Sequence[Call[C]]) -> None:
        """In the thread: make calls, of which some may be dropped by now."""
        raise NotImplementedError

    def told(self, error: BaseException) -> BaseException:
        """An error of a call as its caller is told it."""
        raise NotImplementedError

    async def open(self) -> None:
        """Raises what `connect` raises."""
        self._token = trio.lowlevel.current_trio_token()
        opened = trio.Event()
        self._thread = threading.Thread(target=self._run, args=(opened,), name=self._name, daemon=True)
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

    async def result(self, what: C) -> Any:
        """Of a call, which may be made more than once. Cancelled, it is made or not.

        Raises:
            Internal: the store is closed.
            Others: as `told` says.
        """
        async with self._room:
            if self._is_closed:
                raise Internal("the job store is closed")
            call = Call(what)
            self._calls.put(call)
            try:
                await call.done.wait()
            except trio.Cancelled:
                call.is_dropped = True
                raise
        if call.error is not None:
            raise self.told(call.error)
        return call.result

    def _run(self, opened: trio.Event) -> None:
        try:
            self.connect()
        except BaseException as error:
            self._failure = error
        self._tell(opened.set)
        if self._failure is not None:
            return
        try:
            while calls := self._gathered():
                try:
                    self.make(calls)
                except BaseException as error:  # nobody shall wait for ever
                    for call in calls:
                        call.error = error
                done = [call.done for call in calls]
                self._tell(lambda done=done: [event.set() for event in done])
        finally:
            self.disconnect()

    def _gathered(self) -> Sequence[Call[C]]:
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

    def _tell(self, what: Any) -> None:
        assert self._token is not None
        with suppress(trio.RunFinishedError):  # nobody waits any more
            self._token.run_sync_soon(what)
