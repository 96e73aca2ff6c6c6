"""Transport: bytes in and out of one accepted connection, a plain socket or any stream (TLS is in `tls_wire`).

Flow: kernel -> [transport] -> an edge's connection -> [transport] -> kernel

Trio's `SocketStream` passes a checkpoint in each call, also where the kernel takes or has the bytes at once. Here a
plain socket is tried first, and the task waits only where it is not ready, which spares iterations of Trio's loop.

Owned by its connection, which closes it on every way out. A cancelled send leaves a part sent, so that nothing but
closing may follow.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import trio

from protocol.messages import Buffer
from protocol.reactor.readable import Readable

# A client that takes such a piece of a response within its time may go on.
SEND_SIZE = 256 * 1024
# Of one call of sendmsg; systems allow 1024.
_MOST_BUFFERS = 512


class Wire(Protocol):
    """A byte stream for one reading and one writing task. A lost connection reads as the end of the stream; no method
    raises for one."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be lost in both directions: reset by the client, or broken. A client that
        has ended its sending direction in good order may still read."""

    @property
    def peer(self) -> str:
        """The client's address, as `host:port`; empty where it has none."""

    async def receive(self, size: int) -> bytes:
        """At least one byte and at most `size`; none when the client has closed its end, or is lost."""

    async def receive_into(self, view: memoryview) -> int:
        """As `receive`, into memory that is there; returns how many bytes."""

    def receive_into_at_once(self, *views: Buffer) -> int | None:
        """As `receive_into`, one after the other; None where nothing is there yet, or the transport cannot tell."""

    async def send(self, data: Buffer, pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        """Send all of it; returns whether the kernel has taken it. Each piece of `SEND_SIZE` may take `pause_seconds`,
        so that a slow reader gets everything; `on_pause` is called before one that reads nothing is given up."""

    def send_at_once(self, parts: Sequence[Buffer]) -> int:
        """Send what the kernel takes without waiting, and return how many bytes that was: 0 where the transport cannot
        do that, or the connection is lost. Not while `send` or `send_parts` is under way."""

    async def send_parts(self, parts: Sequence[Buffer], pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        """As `send`, from several places in memory."""

    async def send_eof(self) -> None:
        """End the sending direction (half-close), where the protocol can."""

    async def aclose(self) -> None: ...

    def abort(self) -> None:
        """Close at once; a task that waits for the socket sees the end of the stream."""


class SocketWire:
    """What wires over a socket have in common, which is taken from an accepted stream, of no use afterwards. `peer` is
    the client's address where the socket does not know it."""

    __slots__ = ("_has_failed", "_peer", "_readable", "_socket")

    def __init__(self, stream: trio.SocketStream, peer: str | None = None) -> None:
        self._socket = socket.socket(fileno=stream.socket.detach())
        self._socket.setblocking(False)
        self._readable = Readable(self._socket)
        self._has_failed = False
        self._peer = peer
        spare_pacing(self._socket)

    @property
    def peer(self) -> str:
        if self._peer is None:
            self._peer = address_of(self._socket.getpeername)
        return self._peer

    @property
    def is_lost(self) -> bool:
        # The system tells an error once, to whoever comes first.
        self._has_failed = self._has_failed or has_error(self._socket)
        return self._has_failed

    async def aclose(self) -> None:
        self.abort()
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        if self._socket.fileno() >= 0:
            self._readable.end()
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class PlainWire(SocketWire):
    """Over a plain TCP or Unix socket."""

    __slots__ = ()

    @property
    def socket(self) -> socket.socket:
        """To be waited for; whatever is read from it is read here."""
        return self._socket

    def receive_at_once(self, size: int) -> bytes | None:
        """As `receive`; None where nothing is there yet."""
        try:
            return self._socket.recv(size)
        except BlockingIOError:
            return None
        except OSError:
            self._has_failed = True
            return b""

    def receive_into_at_once(self, *views: Buffer) -> int | None:
        try:
            return self._socket.recvmsg_into(views)[0]
        except BlockingIOError:
            return None
        except OSError:
            self._has_failed = True
            return 0

    async def receive(self, size: int) -> bytes:
        # Waiting goes first: where a request has been answered, the next one is hardly ever there yet.
        while True:
            try:
                await self._readable.wait()
                return self._socket.recv(size)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                self._has_failed = True
                return b""

    async def receive_into(self, view: memoryview) -> int:
        try:
            while True:
                with suppress(BlockingIOError):
                    return self._socket.recv_into(view)
                await self._readable.wait()
        except (OSError, trio.ClosedResourceError):
            self._has_failed = True
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
            self._has_failed = True
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

    def send_at_once(self, parts: Sequence[Buffer]) -> int:
        try:
            return self._socket.send(parts[0]) if len(parts) == 1 else self._socket.sendmsg(parts[:_MOST_BUFFERS])
        except BlockingIOError:
            return 0
        except OSError:
            self._has_failed = True
            return 0

    async def send_parts(self, parts: Sequence[Buffer], pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        # Mostly the kernel takes all of it, and a scope costs as much as many a system call.
        parts = rest_of(parts, self.send_at_once(parts))
        if not parts:
            return True
        goal = SEND_SIZE
        try:
            with trio.move_on_after(pause_seconds) as sending:
                while parts:
                    try:
                        sent = self._socket.sendmsg(parts[:_MOST_BUFFERS])
                    except BlockingIOError:
                        await trio.lowlevel.wait_writable(self._socket)
                        continue
                    parts = rest_of(parts, sent)
                    goal -= sent
                    if goal <= 0:
                        goal = SEND_SIZE
                        sending.deadline = trio.current_time() + pause_seconds
            if sending.cancelled_caught:
                on_pause()
                return False
            return True
        except (OSError, trio.ClosedResourceError):
            self._has_failed = True
            return False

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


def has_error(connected: socket.socket | trio.socket.SocketType) -> bool:
    """Whether the system has an error to tell of the connection, which is told once."""
    try:
        return connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
    except OSError:  # closed meanwhile
        return True


def spare_pacing(accepted: socket.socket) -> None:
    """A client on the same machine: there is no network between that could be congested. Where the system's congestion
    control estimates a bandwidth and sends no faster than that (BBR), large responses would wait for nothing."""
    if accepted.family not in (socket.AF_INET, socket.AF_INET6) or not hasattr(socket, "TCP_CONGESTION"):
        return
    with suppress(OSError):  # the client has gone, or the system has no Reno
        if accepted.getpeername()[0] == accepted.getsockname()[0]:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


class StreamWire:
    """Over any stream of Trio's; nothing is sent without waiting."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._has_failed = False

    @property
    def peer(self) -> str:
        stream = self._stream
        return address_of(stream.socket.getpeername) if isinstance(stream, trio.SocketStream) else ""

    @property
    def is_lost(self) -> bool:
        return self._has_failed

    async def receive(self, size: int) -> bytes:
        try:
            return bytes(await self._stream.receive_some(size))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._has_failed = True
            return b""

    async def receive_into(self, view: memoryview) -> int:
        data = await self.receive(len(view))
        view[: len(data)] = data
        return len(data)

    def receive_into_at_once(self, *views: Buffer) -> int | None:
        return None

    async def send(self, data: Buffer, pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        try:
            with memoryview(data) as view:
                for start in range(0, len(view), SEND_SIZE):
                    with trio.move_on_after(pause_seconds) as sending:
                        await self._stream.send_all(view[start : start + SEND_SIZE])
                    if sending.cancelled_caught:
                        on_pause()
                        return False
            return True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._has_failed = True
            return False

    def send_at_once(self, parts: Sequence[Buffer]) -> int:
        return 0

    async def send_parts(self, parts: Sequence[Buffer], pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        return await self.send(b"".join(parts), pause_seconds, on_pause)

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._stream.send_eof()
        else:
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def abort(self) -> None:
        raise NotImplementedError("there is no socket to be seen")


def wire_over(stream: trio.abc.Stream, peer: str | None = None) -> Wire:
    """The wire takes over the stream: only the wire may be used and closed from now on. `peer` is as in `PlainWire`."""
    return PlainWire(stream, peer) if isinstance(stream, trio.SocketStream) else StreamWire(stream)


def split(parts: Sequence[Buffer], size: int) -> tuple[list[Buffer], list[Buffer]]:
    """The first `size` bytes of the parts, and the others."""
    left = size
    for number, part in enumerate(parts):
        if left < len(part):
            if not left:
                return [*parts[:number]], [*parts[number:]]
            view = memoryview(part)
            return [*parts[:number], view[:left]], [view[left:], *parts[number + 1 :]]
        left -= len(part)
    return [*parts], []


def rest_of(parts: Sequence[Buffer], size: int) -> list[Buffer]:
    """The parts behind the first `size` bytes: the second of what `split` gives, for less."""
    for number, part in enumerate(parts):
        if size < len(part):
            return [memoryview(part)[size:], *parts[number + 1 :]] if size else [*parts[number:]]
        size -= len(part)
    return []


def address_of(find: Callable[[], Any]) -> str:
    """An address as text; empty for a socket that has none, or whose client has gone."""
    try:
        address = find()
    except OSError:
        return ""
    if not isinstance(address, tuple):
        return ""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
