"""Channel: the server's end of a worker's socket; sends frames in order, and dispatches received frames by kind.

`run` is its one task; without it nothing is read, and nothing is written that does not go at once.
"""

from __future__ import annotations

import array
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from backends.python.wire.frames import BrokenFrame, Frame, FrameReader
from protocol.failures import CallbackFailures
from protocol.messages import Buffer
from protocol.reactor.drivers import the_poller
from protocol.reactor.poller import Poller
from protocol.sync.wakeup import Wakeup

_READ_SIZE = 1 << 20
_SMALLEST_READ = 65536
_MOST_BUFFERS = 512  # of one sendmsg call; systems allow 1024
_JOINED_SIZE = 1 << 18
# Frames that are taken at once; a message of a model takes some tens of microseconds, or more if it is long.
_MOST_FRAMES = 8
_LONG_HEAD_SHIFT = 12


class WorkerGone(Exception):
    """The worker has closed its end, or sent an invalid frame (then the text says so)."""


@dataclass(slots=True)
class _Outgoing:
    """The unwritten rest of a frame; its descriptors go with the first byte."""

    parts: list[memoryview]
    descriptors: list[int]


class Handlers(dict[int, Callable[[Frame], None]]):
    """Handlers of the worker's frames by kind. They must not block, and raise BrokenFrame for invalid frames."""

    def __missing__(self, kind: int) -> Callable[[Frame], None]:
        raise BrokenFrame(f"it sent a frame of kind {kind}, which is not expected now")


class Channel:
    """`handlers` get each frame of the worker. An exception of theirs ends the worker, as an invalid frame does, and is
    counted in `failures`."""

    def __init__(
        self, control: socket.socket, handlers: Handlers, name: str = "", failures: CallbackFailures | None = None
    ) -> None:
        self._name = name
        self._failures = failures or CallbackFailures()
        control.setblocking(False)
        self._socket = control
        self._handlers = handlers
        self._reader = FrameReader()
        self._outbox: deque[_Outgoing] = deque()
        self._written = 0  # frames
        self._given = 0
        self._progress = trio.lowlevel.ParkingLot()
        self._has_more = trio.lowlevel.ParkingLot()
        self._ended = Wakeup()
        self._paused = Wakeup()
        self._poller: Poller | None = None  # while it has the socket in sight
        self.is_closed = False
        self.problem = ""

    async def send(
        self, start: bytes, body: Sequence[Buffer] = (), body_size: int = 0, descriptors: Sequence[int] = ()
    ) -> None:
        """Send a frame, with file descriptors; returns when it is written. Cancelled, it is written all the same.

        Raises:
            WorkerGone: there is nobody to send it to.
        """
        if self.give(start, body, body_size, descriptors):
            return
        number = self._given
        while self._written < number and not self.is_closed:
            await self._progress.park()
        self._check()

    def give(
        self, start: bytes, body: Sequence[Buffer] = (), body_size: int = 0, descriptors: Sequence[int] = ()
    ) -> bool:
        """Send a frame without waiting; what does not go at once is written when it can be. Whether all of it has gone.

        Raises:
            WorkerGone: there is nobody to send it to.
        """
        if self.is_closed:
            raise WorkerGone(self.problem)
        size = len(start) + body_size
        if size <= _JOINED_SIZE:
            joined = b"".join((start, *body)) if body else start
            sent = 0
            if not (descriptors or self._outbox):
                try:
                    sent = self._socket.send(joined)
                except BlockingIOError:
                    pass
                except OSError:  # its end is closed; what it sent before may still be read
                    sent = size
            if sent == size:
                return True
            parts = [memoryview(joined)[sent:]]
        else:
            parts = [memoryview(part).cast("B") for part in (start, *body) if len(part)]
        self._give(_Outgoing(parts, list(descriptors)))
        return not self._outbox

    def post(self, frame: bytes) -> None:
        """Send a small frame without waiting: what does not go at once is written later. Dropped if the worker is
        gone."""
        if not self.is_closed:
            self._give(_Outgoing([memoryview(frame)], []))

    async def run(self) -> None:
        """Receive frames until the worker has closed its end, or sends an invalid one."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_rest)
            nursery.start_soon(self._watch)
            try:
                while not self.is_closed:
                    await self._ended.wait()
            finally:
                self._look_away()
            nursery.cancel_scope.cancel()

    def hang_up(self) -> None:
        """Have `run` end once what has arrived is read. For a worker that is gone, but whose socket some process that
        it forked may still hold."""
        if self._socket.fileno() != -1:
            with suppress(OSError):  # the other side was faster
                self._socket.shutdown(socket.SHUT_RDWR)

    def refuse(self, problem: str) -> None:
        """Stop reading from a worker that has sent an invalid frame, and have `run` end."""
        self._end(problem)
        self.hang_up()

    def close(self) -> None:
        self._end()
        if self._socket.fileno() != -1:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def _check(self) -> None:
        if self.is_closed:
            raise WorkerGone(self.problem)

    def _end(self, problem: str = "") -> None:
        if not self.is_closed:
            self.is_closed = True
            self.problem = problem
            self._look_away()
            self._outbox.clear()
            self._progress.unpark_all()
            self._ended.wake()

    def _look_away(self) -> None:
        if self._poller is not None:
            self._poller.remove(self._socket)
            self._poller = None

    def _give(self, outgoing: _Outgoing) -> None:
        self._check()
        self._outbox.append(outgoing)
        self._given += 1
        if len(self._outbox) == 1 and not self._write():
            self._has_more.unpark_all()

    async def _write_rest(self) -> None:
        while True:
            if not self._outbox:
                await self._has_more.park()
            elif not self._write():
                with suppress(trio.ClosedResourceError):  # closed meanwhile, and marked so
                    await trio.lowlevel.wait_writable(self._socket)
            else:
                await trio.lowlevel.checkpoint()

    def _write(self) -> bool:
        """Write as much as goes without waiting; returns whether that is all."""
        while self._outbox:
            outgoing = self._outbox[0]
            try:
                sent = self._send_some(outgoing)
            except BlockingIOError:
                return False
            except OSError:  # its end is closed; what it sent before may still be read
                self._written += len(self._outbox)
                self._outbox.clear()
                self._progress.unpark_all()
                return True
            outgoing.descriptors = []
            parts = outgoing.parts
            done = 0
            while done < len(parts) and sent >= len(parts[done]):
                sent -= len(parts[done])
                done += 1
            del parts[:done]
            if sent:
                parts[0] = parts[0][sent:]
            if not parts:
                self._outbox.popleft()
                self._written += 1
                self._progress.unpark_all()
        return True

    def _send_some(self, outgoing: _Outgoing) -> int:
        buffers = outgoing.parts[:_MOST_BUFFERS]
        if not outgoing.descriptors:
            return self._socket.sendmsg(buffers)
        rights = array.array("i", outgoing.descriptors)
        return self._socket.sendmsg(buffers, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def _read(self) -> None:
        """Read once and take the frames that are whole then. Called by the poller, and again where more is there: a
        worker that sends without end must not stop the others. Neither must one that sends many small frames: what is
        left of these is taken by a task."""
        reader = self._reader
        missing = reader.missing
        try:
            data = self._socket.recv(_SMALLEST_READ if missing < _SMALLEST_READ else min(missing, _READ_SIZE))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        if not self._take(data):
            self._look_away()
            self._paused.wake()

    async def _watch(self) -> None:
        """Have the poller read, but first take what a read has left, a few frames at a time."""
        while True:
            while not self._take():
                await trio.lowlevel.checkpoint()
            if not self.is_closed:
                self._poller = the_poller()
                self._poller.add(self._socket, self._read, self._fail, later=True)
            await self._paused.wait()
            await trio.lowlevel.checkpoint()

    def _take(self, data: bytes = b"") -> bool:
        """Take some frames, now that this has come, too. False where there are more that are whole."""
        reader = self._reader
        left = _MOST_FRAMES
        try:
            frame = reader.next_frame(data)
            while frame is not None:
                self._handlers[frame.kind](frame)
                if reader.missing > 0 or self.is_closed:
                    return True
                left -= 1 + (len(frame.head) >> _LONG_HEAD_SHIFT)
                if left <= 0:
                    return False
                frame = reader.next_frame()
        except BrokenFrame as error:
            self.refuse(str(error))
        except Exception as error:
            self._fail(error)
        return True

    def _fail(self, error: Exception) -> None:
        """A handler has failed: the state of the worker's frame is unknown."""
        self._failures.note(
            "worker", error, f"{self._name}: what its worker says could not be taken; it is started anew"
        )
        self.refuse("the server failed to take what it said")
