"""Wire: one side's end of a socket of a link, which sends bursts in order and gives each frame to `take`.

Read by the poller, in its callbacks; written at once as far as the socket has room. What it has no room for waits here,
for the task `run`, within a bound: a process that does not read is cut off.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio

from protocol.edge_link.frames import BrokenFrame, Frame, FrameReader
from protocol.failures import CallbackFailures
from protocol.messages import Buffer
from protocol.reactor.drivers import the_poller
from protocol.reactor.poller import Poller
from protocol.sync.wakeup import Wakeup

# Of a burst of small frames; more is mapped anew by the system for each read. Of a large frame more is read at once.
_READ_BYTES = 1 << 16
_READ_AT_ONCE = 1 << 20
_MOST_BUFFERS = 512  # of one sendmsg call; systems allow 1024
_JOINED_BYTES = 1 << 16
# Of each socket's buffer, as far as the system allows: a burst is to go in one piece.
_SOCKET_BYTES = 1 << 20


class Wire:
    """`take` gets each frame, in the poller's callback, and must not block. It raises BrokenFrame for what is invalid;
    any other exception is a defect, is counted, and ends the wire as well. `problem` says why it has ended, where the
    other side has not just closed it."""

    def __init__(
        self,
        control: socket.socket,
        take: Callable[[Frame], None],
        *,
        name: str,
        unsent_bytes: int,
        stall_seconds: float,
        failures: CallbackFailures,
    ) -> None:
        control.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            control.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
        self.socket = control
        self.is_closed = False
        self.problem = ""
        self._name = name
        self._take = take
        self._unsent_limit = unsent_bytes
        self._stall_seconds = stall_seconds
        self._failures = failures
        self._reader = FrameReader()
        self._outbox: deque[memoryview] = deque()
        self._unsent = 0
        self._has_more = Wakeup()
        self._ended = Wakeup()
        self._poller: Poller | None = None  # while it has the socket in sight

    async def run(self) -> None:
        """Read and write until the other side is gone, or has to be."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_rest)
            self._poller = the_poller()
            self._poller.add(self.socket, self.read, self._fail)
            try:
                while not self.is_closed:
                    await self._ended.wait()
            finally:
                self._look_away()
            nursery.cancel_scope.cancel()

    def send(self, parts: list[Buffer], size: int) -> None:
        """Send a frame of so many bytes. Dropped where the other side is gone."""
        if self.is_closed:
            return
        if size <= _JOINED_BYTES:
            joined = b"".join(parts)
            sent = 0
            if not self._outbox:
                try:
                    sent = self.socket.send(joined)
                except BlockingIOError:
                    pass
                except OSError:  # what it has sent before is still to be read
                    return
                if sent == size:
                    return
            rest = [memoryview(joined)[sent:]]
        else:
            rest = [memoryview(part).cast("B") for part in parts if len(part)]
            sent = 0
        if self._unsent > self._unsent_limit:  # before this one, which may be large by itself
            self.end(f"it has not read {self._unsent} bytes that wait for it")
            return
        self._outbox += rest
        self._unsent += size - sent
        self.write_some()
        if self._outbox:
            self._has_more.wake()

    def end(self, problem: str = "") -> None:
        """Neither read nor write any more, and have `run` end."""
        if not self.is_closed:
            self.is_closed = True
            self.problem = problem
            self._look_away()
            self._outbox.clear()
            self._unsent = 0
            self._ended.wake()

    def close(self) -> None:
        self.end()
        if self.socket.fileno() != -1:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    def read(self) -> None:
        """Read once, and take the frames that are whole then; of a large one a part."""
        if self.is_closed:
            return
        reader = self._reader
        room = reader.room
        try:
            if room is None:
                data = self.socket.recv(_READ_BYTES)
                count = len(data)
            else:
                count = self.socket.recv_into(room[:_READ_AT_ONCE])
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.end()
            return
        try:
            if room is None:
                for frame in reader.take(data):
                    self._take(frame)
                    if self.is_closed:
                        return
            elif (found := reader.fill(count)) is not None:
                self._take(found)
        except BrokenFrame as error:
            self.end(str(error))
        except Exception as error:
            self._fail(error)

    def _look_away(self) -> None:
        if self._poller is not None:
            self._poller.remove(self.socket)
            self._poller = None

    async def _write_rest(self) -> None:
        while not self.is_closed:
            if not self._outbox:
                await self._has_more.wait()
                continue
            with trio.move_on_after(self._stall_seconds) as stalled:
                with suppress(trio.ClosedResourceError):  # closed meanwhile, and marked so
                    await trio.lowlevel.wait_writable(self.socket)
                self.write_some()
            if stalled.cancelled_caught:
                self.end(f"it has read nothing for {self._stall_seconds:g} s, and {self._unsent} bytes wait for it")

    def write_some(self) -> None:
        """As much as goes without waiting."""
        outbox = self._outbox
        while outbox:
            buffers = [outbox[index] for index in range(min(len(outbox), _MOST_BUFFERS))]
            try:
                sent = self.socket.sendmsg(buffers)
            except BlockingIOError:
                return
            except OSError:
                outbox.clear()
                self._unsent = 0
                return
            self._unsent -= sent
            while sent and sent >= len(outbox[0]):
                sent -= len(outbox.popleft())
            if sent:
                outbox[0] = outbox[0][sent:]

    def _fail(self, error: Exception) -> None:
        self._failures.note("edge link", error, f"{self._name}: what came by the link could not be taken; it ends")
        self.end("what it said could not be taken")
