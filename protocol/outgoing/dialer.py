"""Dialer: connections to hosts that clients name, in two steps, so that the addresses that were judged are those asked.

A host's name is resolved once for each use. Proxies of the environment are not used. Cancelled at any point, nothing is
left but a thread that resolves a name, which ends by itself.
"""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from protocol.outgoing.urls import HttpUrl, UrlError

# Names that are resolved at a time, where a use says no other; those that cancelled uses have left behind count, too.
MAX_RESOLVERS = 8
_MAX_ADDRESSES = 4
# For which an address is tried while there is another one.
_ATTEMPT_SECONDS = 1.0


def addresses_of(host: str) -> Sequence[str]:
    """Of a host by its name. Blocks. Raises OSError."""
    found = socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Dialer:
    """That of one purpose of a server."""

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        resolve: Callable[[str], Sequence[str]] = addresses_of,
        *,
        most_resolvers: int = MAX_RESOLVERS,
    ) -> None:
        """Without `tls`, certificates are judged by the system's roots, or those of SSL_CERT_FILE. `resolve` blocks."""
        self._tls = tls
        self._resolve = resolve
        self._resolvers = trio.CapacityLimiter(most_resolvers)

    async def addresses(self, host: str) -> Sequence[str]:
        """Those of a host; they are still to be judged. Raises UrlError: there are none."""
        try:  # in threads of its own, since those of others must not wait for servers of names
            return await trio.to_thread.run_sync(self._resolve, host, abandon_on_cancel=True, limiter=self._resolvers)
        except (OSError, UnicodeError):
            raise UrlError(f"there is no host '{host:.80}'") from None

    async def connect(self, url: HttpUrl, addresses: Sequence[str]) -> trio.abc.Stream:
        """A connection to the first address that takes one. Raises UrlError: none does."""
        tried = addresses[:_MAX_ADDRESSES]
        for address in tried:
            stream = None
            with trio.move_on_after(math.inf if address is tried[-1] else _ATTEMPT_SECONDS), suppress(OSError):
                stream = await _connected(address, url.port)
            if stream is not None:
                return stream if url.scheme == "http" else await self._secured(stream, url.host)
        raise UrlError("no connection could be made")

    async def _secured(self, stream: trio.SocketStream, host: str) -> trio.abc.Stream:
        if self._tls is None:
            self._tls = await trio.to_thread.run_sync(ssl.create_default_context)
        secured = trio.SSLStream(stream, self._tls, server_hostname=host, https_compatible=True)
        try:
            await secured.do_handshake()
        except BaseException as error:
            await trio.aclose_forcefully(secured)
            if isinstance(error, trio.BrokenResourceError):
                raise UrlError(f"TLS failed: {_reason(error)}") from None
            raise
        return secured


async def _connected(address: str, port: int) -> trio.SocketStream:
    opened = trio.socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        await opened.connect((address, port))
    except BaseException:
        opened.close()
        raise
    return trio.SocketStream(opened)


def _reason(error: trio.BrokenResourceError) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return cause.verify_message
    return "the host does not speak it" if isinstance(cause, ssl.SSLError) else "its connection broke"
