"""The bytes of one accepted connection, in and out: a plain socket, or TLS over one.

    kernel -> [wire] -> http1 or http2 -> [wire] -> kernel

Trio's `SocketStream` gives the loop a turn around each call, also where the kernel takes or has the bytes at once. Here
a plain socket is tried first, and only where it is not ready the task waits; what a request costs is counted in turns.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import trio

from protocol.messages import Buffer

# A client that takes such a piece of a response within its time may go on.
SEND_SIZE = 256 * 1024


class Wire(Protocol):
    """One task reads and one writes at a time. A lost connection reads as its end; nothing here raises for one."""

    async def receive(self, size: int) -> bytes:
        """At least one byte and at most `size`; none when the client has closed its end, or is lost."""

    async def receive_into(self, view: memoryview) -> int:
        """As `receive`, into memory that is there; returns how many bytes."""

    async def send(self, data: Buffer, pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        """Whether all has been taken. Each piece of `SEND_SIZE` may take `pause_seconds`, so that a slow
        reader gets everything; `on_pause` is called before a deaf one is given up. Cancelled, it leaves a part sent."""

    async def send_eof(self) -> None:
        """Say that nothing more comes, where the protocol can say it."""

    async def aclose(self) -> None: ...

    def abort(self) -> None:
        """Close at once, under whoever waits for it."""


class PlainWire:
    """Takes over the socket of an accepted stream, which is of no use afterwards."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._socket = socket.socket(fileno=stream.socket.detach())
        self._socket.setblocking(False)

    async def receive(self, size: int) -> bytes:
        # Waiting goes first: where a request has been answered, the next one is hardly ever there yet.
        while True:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                return self._socket.recv(size)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                return b""

    async def receive_into(self, view: memoryview) -> int:
        try:
            while True:
                with suppress(BlockingIOError):
                    return self._socket.recv_into(view)
                await trio.lowlevel.wait_readable(self._socket)
        except (OSError, trio.ClosedResourceError):
            return 0

    async def send(self, data: Buffer, pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        try:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            if sent == len(data):
                return True
            with memoryview(data) as view:
                return await self._send_rest(view[sent:], pause_seconds, on_pause)
        except (OSError, trio.ClosedResourceError):
            return False

    async def _send_rest(self, view: memoryview, pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        sent = 0
        while sent < len(view):
            goal = min(sent + SEND_SIZE, len(view))
            with trio.move_on_after(pause_seconds) as sending:
                while sent < goal:
                    await trio.lowlevel.wait_writable(self._socket)
                    with suppress(BlockingIOError):
                        sent += self._socket.send(view[sent:])
            if sending.cancelled_caught:
                on_pause()
                return False
        return True

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        self.abort()
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class TlsWire:
    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self.stream = stream

    async def receive(self, size: int) -> bytes:
        try:
            return bytes(await self.stream.receive_some(size))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def receive_into(self, view: memoryview) -> int:
        data = await self.receive(len(view))
        view[: len(data)] = data
        return len(data)

    async def send(self, data: Buffer, pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        try:
            with memoryview(data) as view:
                for start in range(0, len(view), SEND_SIZE):
                    with trio.move_on_after(pause_seconds) as sending:
                        await self.stream.send_all(view[start : start + SEND_SIZE])
                    if sending.cancelled_caught:
                        on_pause()
                        return False
            return True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False

    async def send_eof(self) -> None:
        """TLS ends both directions at once: the goodbye is part of closing."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self.stream.aclose()

    def abort(self) -> None:
        self.stream.transport_stream.socket.close()
