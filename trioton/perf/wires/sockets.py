"""Client's sockets: bytes out at once, bytes in by a callback of the poller; over TLS by tasks.

Whoever opens one closes it. `receive` and `lost` are called from the poller or a task, never within `write` but for
`lost`, which is called once and not after `close`.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from protocol.messages import Buffer
from protocol.reactor.drivers import the_poller
from protocol.sync.wakeup import Wakeup

_READ_SIZE = 65536
_CONNECT_SECONDS = 10.0


class Connection(Protocol):
    """An open connection."""

    def write(self, data: Buffer) -> None:
        """Send, all in order. What the system does not take at once leaves later, and must not change."""

    def close(self) -> None: ...


OwnerType = TypeVar("OwnerType", bound="Owner")


class Owner(Protocol):
    """Whose connection it is."""

    def receive(self, data: bytes) -> None: ...

    def lost(self, reason: str) -> None:
        """It is of no use any more."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Where connections go to. `protocol` is what is asked for by ALPN."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def client_tls(protocol: str, ca_file: str = "") -> ssl.SSLContext:
    """Judges certificates by the system's roots, or those of a file."""
    context = ssl.create_default_context(cafile=ca_file or None)
    context.set_alpn_protocols([protocol])
    return context


async def connect(peer: Peer, nursery: trio.Nursery, make_owner: Callable[[Connection], OwnerType]) -> OwnerType:
    """Connect, and return the owner that was made of the connection; nothing may be written before. `nursery` gets
    tasks for what cannot be done at once.

    Raises:
        OSError: there is no connection; the text says why.
    """
    stream = await open_stream(peer)
    if isinstance(stream, trio.SSLStream):
        encrypted = _TlsConnection(stream)
        owner = make_owner(encrypted)
        nursery.start_soon(encrypted.run, owner)
    else:
        plain = _PlainConnection(socket.socket(fileno=stream.socket.detach()), nursery)
        owner = make_owner(plain)
        plain.start(owner)
    return owner


class _PlainConnection:
    def __init__(self, opened: socket.socket, nursery: trio.Nursery) -> None:
        opened.setblocking(False)
        self._socket = opened
        self._nursery = nursery
        self._waiting: deque[memoryview] = deque()
        self._owner: Owner | None = None
        self._poller = the_poller()

    def fileno(self) -> int:
        return self._socket.fileno()

    def start(self, owner: Owner) -> None:
        self._owner = owner
        self._poller.add(self, self._read, self._fail)

    def write(self, data: Buffer) -> None:
        if self._waiting:
            self._waiting.append(memoryview(data))
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        if sent < len(data):
            self._waiting.append(memoryview(data)[sent:])
            self._nursery.start_soon(self._write_waiting)

    def close(self) -> None:
        if self._owner is not None:
            self._owner = None
            self._poller.remove(self)
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        if not data:
            self._lose("the server has closed the connection")
        elif self._owner is not None:
            self._owner.receive(data)

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                await trio.lowlevel.wait_writable(self._socket)
                part = self._waiting[0]
                sent = self._socket.send(part)
                if sent == len(part):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = part[sent:]
        except (OSError, trio.ClosedResourceError) as error:
            self._lose(str(error))

    def _fail(self, error: Exception) -> None:
        """The owner has failed within `receive`."""
        self._lose(f"a response cannot be read: {error}")

    def _lose(self, reason: str) -> None:
        owner = self._owner
        self.close()
        if owner is not None:
            owner.lost(reason)


class _TlsConnection:
    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._waiting: deque[Buffer] = deque()
        self._wakeup = Wakeup()
        self._scope = trio.CancelScope()
        self._is_open = True

    def write(self, data: Buffer) -> None:
        self._waiting.append(data)
        self._wakeup.wake()

    def close(self) -> None:
        self._is_open = False
        self._scope.cancel()

    async def run(self, owner: Owner) -> None:
        """Until it is closed or lost."""
        reason = "the server has closed the connection"
        try:
            with self._scope:
                reason = await self._read(owner) or reason
        finally:
            await trio.aclose_forcefully(self._stream)
        if self._is_open:
            self._is_open = False
            owner.lost(reason)

    async def _read(self, owner: Owner) -> str:
        """Until the end; why, where that was no orderly one."""
        reason = ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                while data := await self._stream.receive_some(_READ_SIZE):
                    owner.receive(bytes(data))
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as group:
            reason = str(group.exceptions[0])
        return reason

    async def _write(self) -> None:
        while True:
            if not self._waiting:
                await self._wakeup.wait()
            await self._stream.send_all(self._waiting.popleft())


async def open_stream(peer: Peer) -> trio.SocketStream | trio.SSLStream[trio.SocketStream]:
    """A connection for a few requests by a task, which closes it. Raises OSError."""
    try:
        with trio.fail_after(_CONNECT_SECONDS):
            stream = await trio.open_tcp_stream(peer.host, peer.port)
            if peer.tls is None:
                return stream
            secured = trio.SSLStream(stream, peer.tls, server_hostname=peer.host, https_compatible=True)
            try:
                await secured.do_handshake()
            except BaseException:
                await trio.aclose_forcefully(secured)
                raise
            return secured
    except OSError as error:  # Trio tells what it has tried, and in a group why each of these has failed
        tried = error.__cause__
        if isinstance(tried, ExceptionGroup):
            raise OSError("; ".join(dict.fromkeys(_reason(each) for each in tried.exceptions))) from None
        raise
    except trio.TooSlowError:
        raise OSError(f"no answer within {_CONNECT_SECONDS:g} s") from None
    except trio.BrokenResourceError as error:
        raise OSError(f"TLS failed: {error.__cause__ or error}") from None


def _reason(error: Exception) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
