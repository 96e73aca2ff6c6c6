"""A socket pair that keeps messages apart and carries sockets (SOCK_SEQPACKET, SCM_RIGHTS).

Neither side waits for the other: what is sent is taken by the kernel at once, or queued here up to a bound.
"""

from __future__ import annotations

import array
import socket
from collections import deque
from typing import Generic, TypeVar

import msgspec
import trio

from protocol.sync.wakeup import WaitingTasks, Wakeup

_Sent = TypeVar("_Sent")
_Received = TypeVar("_Received")

# Of one message; log lines are cut to fit.
MOST_BYTES = 32 * 1024
# What waits for a peer that does not read. Then it is of no use any more.
MOST_QUEUED = 10_000
_FD = array.array("i")


class ChannelFull(Exception):
    """The peer does not read."""


class ChannelLost(Exception):
    """The peer is gone, or has sent what is no message."""


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Neither is inherited by processes that are started, unless they are told to."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel(Generic[_Sent, _Received]):
    """One end, which owns its socket. One task runs `write`, and one calls `receive`."""

    def __init__(self, end: socket.socket, received: object) -> None:
        """`received` is the type of what is received."""
        end.setblocking(False)
        self._socket = end
        self._decoder: msgspec.msgpack.Decoder[_Received] = msgspec.msgpack.Decoder(received)
        self._encoder = msgspec.msgpack.Encoder()
        self._queue: deque[tuple[bytes, socket.socket | None]] = deque()
        self._has_queued = Wakeup()
        self._has_sent = WaitingTasks()

    def try_send(self, message: _Sent, passed: socket.socket | None = None) -> bool:
        """Send now, with a socket that stays open here. False, and nothing is done, where the kernel takes no more.

        Raises:
            ChannelLost: the peer is gone.
        """
        if self._queue:
            return False
        try:
            self._send(self._encoder.encode(message), passed)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelLost(str(error)) from None
        return True

    def send(self, message: _Sent, passed: socket.socket | None = None) -> None:
        """Send now or later, in order; `passed` is closed here.

        Raises:
            ChannelFull: too much is waiting.
        """
        if len(self._queue) >= MOST_QUEUED:
            if passed is not None:
                passed.close()
            raise ChannelFull
        self._queue.append((self._encoder.encode(message), passed))
        self._has_queued.wake()

    @property
    def queued(self) -> int:
        return len(self._queue)

    async def until_fewer(self, count: int) -> None:
        """Wait, beside `write`, until fewer messages than this are queued."""
        while len(self._queue) >= count:
            await self._has_sent.wait()

    async def write(self) -> None:
        """Send what is queued, until cancelled, or the peer is gone."""
        queue = self._queue
        while True:
            while queue:
                data, passed = queue[0]
                try:
                    self._send(data, passed)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._socket)
                    continue
                except OSError:
                    return
                queue.popleft()
                self._has_sent.wake_all()
                if passed is not None:
                    passed.close()
            await self._has_queued.wait()

    async def receive(self) -> tuple[_Received, socket.socket | None]:
        """The next message, and the socket that came with it.

        Raises:
            ChannelLost: there is none.
        """
        while (found := self.receive_at_once()) is None:
            await trio.lowlevel.wait_readable(self._socket)
        return found

    def receive_at_once(self) -> tuple[_Received, socket.socket | None] | None:
        """As `receive`; None where nothing is there yet."""
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                MOST_BYTES, socket.CMSG_SPACE(_FD.itemsize), getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise ChannelLost(str(error)) from None
        passed = _passed(ancillary)
        try:
            if not data or flags & socket.MSG_TRUNC:
                raise ChannelLost("the other process is gone" if not data else "a message was too long")
            return self._decoder.decode(data), passed
        except (msgspec.DecodeError, ChannelLost) as error:
            if passed is not None:
                passed.close()
            raise ChannelLost(str(error)) from None

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        for _, passed in self._queue:
            if passed is not None:
                passed.close()
        self._queue.clear()

    def _send(self, data: bytes, passed: socket.socket | None) -> None:
        if passed is None:
            self._socket.send(data)
        else:
            rights = array.array("i", [passed.fileno()])
            self._socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def _passed(ancillary: list[tuple[int, int, bytes]]) -> socket.socket | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors = array.array("i", data[: len(data) - len(data) % _FD.itemsize])
            if descriptors:
                return socket.socket(fileno=descriptors[0])
    return None
