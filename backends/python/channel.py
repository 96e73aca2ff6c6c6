"""The server's end of a worker's socket: one question at a time, and its answer.

Whichever task waits reads for all: the task that asks, or the one that attends to the worker while nobody asks.
"""

from __future__ import annotations

import array
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from backends.python.wire import BrokenFrame, Frame, FrameReader, LogHead, decode_head
from backends.python.worker.trioton_worker.frames import LOG
from protocol.messages import Buffer

_READ_SIZE = 1 << 20
_SMALLEST_READ = 65536
_MOST_BUFFERS = 512  # of one sendmsg call; systems allow 1024
_JOINED_SIZE = 1 << 18


class WorkerGone(Exception):
    """The worker has closed its end, or what it sent was broken (then the text says so)."""


class Channel:
    """`on_log` is called with each log message of the worker."""

    def __init__(self, control: socket.socket, on_log: Callable[[LogHead], None]) -> None:
        control.setblocking(False)
        self._socket = control
        self._on_log = on_log
        self._reader = FrameReader()
        self._outbox: list[memoryview] = []
        self._descriptors: list[int] = []
        self._is_asking = False
        self._answer: Frame | None = None
        self._is_reading = False
        self._waiting = trio.lowlevel.ParkingLot()
        self.is_closed = False
        self._problem = ""

    async def ask(self, start: bytes, body: Sequence[Buffer] = (), descriptors: Sequence[int] = ()) -> None:
        """Send a frame, with file descriptors. The answer is to be fetched with `answer` before anything else is asked.

        Cancelled, the rest of the frame is sent by the next call of `answer`.

        Raises:
            WorkerGone: there is nobody to send it to.
        """
        self._check()
        assert not self._is_asking
        self._is_asking = True
        size = len(start) + sum(memoryview(part).nbytes for part in body)
        if size <= _JOINED_SIZE:
            self._outbox = [memoryview(b"".join((start, *body)))]
        else:
            self._outbox = [memoryview(part).cast("B") for part in (start, *body) if len(part)]
        self._descriptors = list(descriptors)
        await self._flush()

    async def answer(self) -> Frame | None:
        """The answer to what was asked last; None where nothing was, or it was fetched already.

        Cancelled, the answer stays to be fetched.

        Raises:
            WorkerGone: there will be none.
        """
        if not self._is_asking:
            return None
        await self._flush()
        await self.read_until(lambda: self._answer is not None)
        answer, self._answer = self._answer, None
        if answer is None:
            self._check()
        self._is_asking = False
        return answer

    async def read_until(self, done: Callable[[], bool]) -> None:
        """Take what the worker sends until `done`, or until it has closed its end."""
        while not (done() or self.is_closed):
            if self._is_reading:
                await self._waiting.park()
                continue
            self._is_reading = True
            try:
                while True:
                    await self._read()
                    if done() or self.is_closed:
                        break
                    await trio.lowlevel.checkpoint()  # a worker that sends without end must not stop the others
            finally:
                self._is_reading = False
                self._waiting.unpark_all()

    def hang_up(self) -> None:
        """Have readers see the end once what has arrived is read. For a worker that is gone, but whose socket some
        process that it forked may still hold."""
        if self._socket.fileno() != -1:
            with suppress(OSError):  # the other side was faster
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._end()
        if self._socket.fileno() != -1:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def _check(self) -> None:
        if self.is_closed:
            raise WorkerGone(self._problem)

    def _end(self, problem: str = "") -> None:
        if not self.is_closed:
            self.is_closed = True
            self._problem = problem
            self._outbox = []
            self._waiting.unpark_all()

    async def _flush(self) -> None:
        while self._outbox:
            try:
                sent = self._send_some()
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
                continue
            except OSError:  # its end is closed; what it sent before may still be read
                self._outbox = []
                return
            self._descriptors = []
            done = 0
            while done < len(self._outbox) and sent >= len(self._outbox[done]):
                sent -= len(self._outbox[done])
                done += 1
            del self._outbox[:done]
            if sent:
                self._outbox[0] = self._outbox[0][sent:]

    def _send_some(self) -> int:
        buffers = self._outbox[:_MOST_BUFFERS]
        if not self._descriptors:
            return self._socket.sendmsg(buffers)
        rights = array.array("i", self._descriptors)
        return self._socket.sendmsg(buffers, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    async def _read(self) -> None:
        """Read once and take the frames that are whole then."""
        try:
            data = self._socket.recv(min(max(self._reader.missing, _SMALLEST_READ), _READ_SIZE))
        except BlockingIOError:
            with suppress(trio.ClosedResourceError):  # closed meanwhile, and marked so
                await trio.lowlevel.wait_readable(self._socket)
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        self._reader.feed(data)
        try:
            while (frame := self._reader.next_frame()) is not None:
                self._take(frame)
        except BrokenFrame as error:
            self._end(str(error))

    def _take(self, frame: Frame) -> None:
        if frame.kind == LOG:
            self._on_log(decode_head(frame, LogHead))
            return
        if not self._is_asking or self._answer is not None:
            raise BrokenFrame("it answered what was not asked")
        self._answer = frame
        self._waiting.unpark_all()
