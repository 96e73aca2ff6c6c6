"""Calls from the worker to the server: made from any thread or coroutine, answered by frames."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Callable, Sequence

from .connection import Buffer, Connection, Frame, Head
from .frames import ALL, CALL, DEFAULT_CALLS, FORGET, INFER, RETURN, STREAM, TAKEN
from .packing import Packing
from .schemas import Schemas
from .switchboard import Switchboard, Ticket

if TYPE_CHECKING:
    import asyncio


class ServerGone(Exception):
    """There will be no answer."""


class Call:
    """One call: its frames in the order in which they came, until the last one."""

    __slots__ = ("calls", "frames", "has_ended", "id", "is_ignored", "notify")

    def __init__(self, calls: Calls, id: int) -> None:
        self.calls = calls
        self.id = id
        self.frames: deque[Frame] = deque()
        self.has_ended = False
        self.is_ignored = False
        self.notify: Callable[[], None] | None = None

    def wait(self) -> Frame | None:
        """The next frame; None after the last one. Raises ServerGone."""
        while True:
            ticket = Ticket()
            if self._has_news(partial(self.calls.switchboard.complete, ticket)):
                return self.take()
            self.calls.connection.check_may_wait("to wait for another model")
            self.calls.switchboard.wait(ticket)
            if not ticket.is_done:
                raise ServerGone

    def when_news(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Have the callback called in the loop, which runs in this thread, when `take` has something to give."""
        reader = self.calls.switchboard.loop_reader(loop)
        if self._has_news(partial(reader.tell, callback)):
            callback()
        else:
            reader.begin()

    def take(self) -> Frame | None:
        """The next frame, if it is there."""
        return self.frames.popleft() if self.frames else None

    def forget(self) -> None:
        """Have the server give the call up; its end comes all the same."""
        if not self.has_ended:
            self.calls.forget(self)

    def ignore(self) -> None:
        """The rest is of no interest; the called model may go on to its end."""
        self.is_ignored = True
        if not self.has_ended:
            self.calls.connection.send_from_anywhere(TAKEN, {"call": self.id, "count": ALL})

    def count_taken(self, count: int) -> None:
        if not self.has_ended:
            self.calls.connection.send_from_anywhere(TAKEN, {"call": self.id, "count": count})

    def put(self, frame: Frame | None, *, is_last: bool) -> None:
        with self.calls.lock:
            if frame is not None and not self.is_ignored:
                self.frames.append(frame)
            self.has_ended = is_last
            notify, self.notify = self.notify, None
        if notify is not None:
            notify()

    def _has_news(self, notify: Callable[[], None]) -> bool:
        with self.calls.lock:
            if self.frames or self.has_ended:
                return True
            self.notify = notify
            return False


class Calls:
    """All calls of this worker. Of INFER, no more than `limit` are with the server at a time; the others wait here."""

    def __init__(self, connection: Connection, switchboard: Switchboard, schemas: Schemas) -> None:
        self.connection = connection
        self.schemas = schemas
        self.switchboard = switchboard
        self.lock = threading.Lock()
        self.limit = DEFAULT_CALLS
        self._ids = itertools.count(1)
        self._open: dict[int, Call] = {}
        self._limited: set[int] = set()
        self._queued: deque[tuple[int, Head, Packing]] = deque()
        switchboard.handlers[RETURN] = self._returned
        switchboard.handlers[STREAM] = self._streamed

    def infer(self, head: Head, inputs: Packing) -> Call:
        """Begin to run a model. Raises ServerGone."""
        call = self._open_call()
        head["call"] = call.id
        with self.lock:
            if len(self._limited) >= self.limit:
                self._queued.append((call.id, head, inputs))
                return call
            self._limited.add(call.id)
        self._send(INFER, head, *inputs.parts())
        return call

    def ask(self, head: Head, body: Sequence[Buffer] = (), body_size: int = 0) -> Frame:
        """Ask the server for something else, and wait for the answer. Raises ServerGone."""
        call = self._open_call()
        self._send(CALL, {**head, "call": call.id}, (), b"", body, body_size)
        frame = call.wait()
        assert frame is not None
        return frame

    def forget(self, call: Call) -> None:
        with self.lock:
            queued = next((item for item in self._queued if item[0] == call.id), None)
            if queued is not None:
                self._queued.remove(queued)
                self._open.pop(call.id, None)
        if queued is None:
            self.connection.send_from_anywhere(FORGET, {"call": call.id})
        else:
            call.put(None, is_last=True)

    def _open_call(self) -> Call:
        if self.switchboard.is_gone:
            raise ServerGone
        call = Call(self, next(self._ids))
        self._open[call.id] = call
        return call

    def _send(
        self, kind: int, head: Head, column: Sequence[int], schemas: bytes, body: Sequence[Buffer], body_size: int
    ) -> None:
        try:
            self.connection.send(kind, head, column, schemas, body, body_size)
        except OSError:
            self._open.pop(head["call"], None)
            raise ServerGone from None

    def _streamed(self, frame: Frame) -> None:
        self._open[frame.head["call"]].put(frame, is_last=False)

    def _returned(self, frame: Frame) -> None:
        number = frame.head["call"]
        call = self._open.pop(number)
        following = None
        with self.lock:
            if number in self._limited:
                self._limited.discard(number)
                if self._queued:
                    following = self._queued.popleft()
                    self._limited.add(following[0])
        call.put(frame, is_last=True)
        if following is not None:
            with suppress(ServerGone):
                self._send(INFER, following[1], *following[2].parts())
