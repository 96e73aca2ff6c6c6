"""TLS over an accepted TCP socket: the handshake, and bytes in and out.

OpenSSL reads from and writes to the socket itself. Between it and Trio's `SSLStream` are two memory buffers, which
never become smaller than the most that they have held: a connection would keep as much as its largest messages have
taken, up to 400 kB, and one that has only shaken hands 2 kB.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import trio

from protocol.messages import Buffer
from protocol.reactor.readable import Readable
from protocol.reactor.transport import SEND_SIZE, SocketWire
from protocol.sync.turns import PacedTurns

logger = logging.getLogger(__name__)

# How long a peer may take to read the alert that ends its handshake.
ALERT_SECONDS = 1.0
_CHUNK = 16384
# Of plain text, that a record has at most; OpenSSL reads no more than one at a time.
_RECORD_SIZE = 16384
# A signature takes most of a millisecond, and many clients come at once after a network's failure.
_HANDSHAKES = PacedTurns("TLS handshakes")

_Read = TypeVar("_Read", bytes, int)


class TlsWire(SocketWire):
    """The server's end. Nothing may be received or sent before `shake_hands`.

    A peer that closes without a TLS goodbye is no attack here: HTTP says itself where its messages end. Nor is one
    said.
    """

    __slots__ = ()

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext, peer: str | None = None) -> None:
        super().__init__(stream, peer)
        try:
            self._socket.getpeername()
            self._socket = context.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
            self._readable = Readable(self._socket)
        except (OSError, ValueError):  # the client has gone
            self._has_failed = True

    async def shake_hands(self) -> str | None:
        """What was agreed on by ALPN, empty without any; None where there is no agreement on TLS.

        The peer is told what was wrong, by a TLS alert: one without the certificate that it needs learns so.
        """
        secured = self._socket
        if not isinstance(secured, ssl.SSLSocket):
            await trio.lowlevel.checkpoint()
            return None
        try:
            await self._readable.wait()
            while True:
                await _HANDSHAKES.wait()
                try:
                    secured.do_handshake()
                except ssl.SSLWantReadError:
                    await self._readable.wait()
                except ssl.SSLWantWriteError:
                    await trio.lowlevel.wait_writable(secured)
                else:
                    return secured.selected_alpn_protocol() or ""
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            logger.debug("a TLS handshake failed: %s", error)
            self._has_failed = True
        await self._linger()
        return None

    async def _linger(self) -> None:
        """OpenSSL has sent an alert. What the peer has still sent is read for a moment and dropped: the kernel would
        else reset the connection, and the peer lose the alert."""
        with suppress(OSError, trio.ClosedResourceError), trio.move_on_after(ALERT_SECONDS):
            self._socket.shutdown(socket.SHUT_WR)
            while True:
                await self._readable.wait()
                if not socket.socket.recv(self._socket, _CHUNK):  # not by OpenSSL
                    return

    async def receive(self, size: int) -> bytes:
        secured = self._socket
        try:
            found = await self._first(lambda: secured.recv(size))
        except (OSError, ValueError, trio.ClosedResourceError):
            self._has_failed = True
            return b""
        if not _RECORD_SIZE <= len(found) < size:
            return found
        rest = memoryview(bytearray(size - len(found)))
        return b"".join((found, rest[: self._receive_more(rest)]))

    async def receive_into(self, view: memoryview) -> int:
        secured = self._socket
        assert isinstance(secured, ssl.SSLSocket)
        try:
            count = await self._first(lambda: secured.recv_into(view))
        except (OSError, ValueError, trio.ClosedResourceError):
            self._has_failed = True
            return 0
        return count + self._receive_more(view[count:]) if count >= _RECORD_SIZE else count

    def receive_into_at_once(self, *views: Buffer) -> int | None:
        return None

    async def _first(self, read: Callable[[], _Read]) -> _Read:
        """What a read has, once it has something."""
        secured = self._socket
        assert isinstance(secured, ssl.SSLSocket)
        # Waiting goes first: where a request has been answered, the next one is hardly ever there yet.
        if not secured.pending():
            await self._readable.wait()
        while True:
            try:
                return read()
            except ssl.SSLWantReadError:
                await self._readable.wait()
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(secured)

    def _receive_more(self, view: memoryview) -> int:
        """The records of a long message that are there already. What is wrong behind them the next read is told."""
        secured, count, received = self._socket, 0, _RECORD_SIZE
        with suppress(OSError):
            while received == _RECORD_SIZE and count < len(view):
                received = secured.recv_into(view[count:])
                count += received
        return count

    async def send(self, data: Buffer, pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        try:
            with memoryview(data) as view:
                for start in range(0, len(view), SEND_SIZE):
                    with trio.move_on_after(pause_seconds) as sending:
                        await self._send_all(view[start : start + SEND_SIZE])
                    if sending.cancelled_caught:
                        on_pause()
                        return False
            return True
        except (OSError, ValueError, trio.ClosedResourceError):
            self._has_failed = True
            return False

    async def _send_all(self, view: memoryview) -> None:
        secured = self._socket
        await trio.lowlevel.checkpoint()
        sent = 0
        while sent < len(view):
            # OpenSSL remembers how much of it has gone, and expects the same again.
            try:
                sent += secured.send(view[sent:])
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(secured)
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(secured)

    def send_at_once(self, parts: Sequence[Buffer]) -> int:
        return 0

    async def send_parts(self, parts: Sequence[Buffer], pause_seconds: float, on_pause: Callable[[], None]) -> bool:
        return await self.send(b"".join(parts), pause_seconds, on_pause)

    async def send_eof(self) -> None:
        """TLS ends both directions at once."""
        await trio.lowlevel.checkpoint()
