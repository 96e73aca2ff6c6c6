"""Media fetcher: gets what a client's URL names, from hosts that are allowed, within bounds of bytes and time.

A host's name is resolved once for each fetch, and the addresses that were judged are those that are asked, also after a
redirect. Proxies of the environment are not used. Cancelled at any point, nothing is left but a thread that resolves
a name, which ends by itself.
"""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from protocol.errors import Overloaded, ServerError
from protocol.media.download import Download, Progress
from protocol.media.hosts import AllowedHosts, HostRule
from protocol.media.urls import MediaUrl, NotFetched, parse_url, redirected

# Fetches of one server at a time; of names that are resolved, those that cancelled fetches have left behind count, too.
MAX_FETCHES = 64
_MAX_RESOLVERS = 8
_MAX_REDIRECTS = 3
_MAX_ADDRESSES = 4
# For which an address is tried while there is another one.
_ATTEMPT_SECONDS = 1.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """`hosts` are those that may be asked. A fetch ends after `timeout` seconds, and `max_bytes` bytes."""

    hosts: Sequence[HostRule] = ()
    max_bytes: int = 16 << 20
    timeout: float = 5.0


def addresses_of(host: str) -> Sequence[str]:
    """Of a host by its name. Blocks. Raises OSError."""
    found = socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class MediaFetcher:
    """That of one server."""

    def __init__(
        self,
        settings: MediaSettings,
        tls: ssl.SSLContext | None = None,
        resolve: Callable[[str], Sequence[str]] = addresses_of,
    ) -> None:
        """Without `tls`, certificates are judged by the system's roots, or those of SSL_CERT_FILE. `resolve` blocks."""
        self._settings = settings
        self._hosts = AllowedHosts(settings.hosts)
        self._tls = tls
        self._resolve = resolve
        self._resolvers = trio.CapacityLimiter(_MAX_RESOLVERS)
        self._running = 0

    async def fetch(self, text: str, on_bytes: Callable[[int], None] = lambda size: None) -> bytearray:
        """What the URL names. `on_bytes` is told of what comes, and may raise.

        Raises:
            NotFetched: it may not be fetched, or cannot.
            Overloaded: too many are fetched now.
        """
        url = parse_url(text)
        self._hosts.check(url)
        if self._running >= MAX_FETCHES:
            raise Overloaded(f"the server fetches {MAX_FETCHES} files for its clients already")
        self._running += 1
        try:
            with trio.fail_after(self._settings.timeout):
                return await self._fetched(url, on_bytes)
        except trio.TooSlowError:
            raise NotFetched(
                f"that took longer than {self._settings.timeout:g} seconds (--openai-media-timeout)"
            ) from None
        finally:
            self._running -= 1

    async def fetch_all(
        self, urls: Iterable[str], on_bytes: Callable[[int], None] = lambda size: None
    ) -> dict[str, bytearray]:
        """What each URL names, all at once. Where one fails, the others end.

        Raises:
            NotFetched, Overloaded: as `fetch`; so does what `on_bytes` raises, if it is a ServerError.
        """
        found: dict[str, bytearray] = {}
        failures: list[NotFetched | ServerError] = []

        async def fetch(url: str) -> None:
            try:
                found[url] = await self.fetch(url, on_bytes)
            except (NotFetched, ServerError) as error:
                if isinstance(error, NotFetched):
                    error.url = url
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for each in urls:
                nursery.start_soon(fetch, each)
        if failures:
            raise failures[0]
        return found

    async def _fetched(self, url: MediaUrl, on_bytes: Callable[[int], None]) -> bytearray:
        addresses = self._hosts.usable(url, await self._resolved(url.host))
        for _ in range(_MAX_REDIRECTS + 1):
            found = await self._got(url, addresses, on_bytes)
            if not found.redirect:
                return found.body
            url = redirected(url, found.redirect)
            self._hosts.check(url)
            addresses = self._hosts.usable(url, addresses)
        raise NotFetched(f"it was redirected more than {_MAX_REDIRECTS} times")

    async def _resolved(self, host: str) -> Sequence[str]:
        """In threads of its own, since those of others must not wait for servers of names."""
        try:
            return await trio.to_thread.run_sync(self._resolve, host, abandon_on_cancel=True, limiter=self._resolvers)
        except (OSError, UnicodeError):
            raise NotFetched(f"there is no host '{host:.80}'") from None

    async def _got(self, url: MediaUrl, addresses: Sequence[str], on_bytes: Callable[[int], None]) -> Download:
        stream = await self._opened(url, addresses)
        try:
            download = Download(self._settings.max_bytes, on_bytes)
            await stream.send_all(download.request(url))
            while (progress := download.read()) is not Progress.DONE:
                if progress is Progress.NEEDS_DATA:
                    download.receive(bytes(await stream.receive_some(_CHUNK)))
                else:
                    await trio.lowlevel.checkpoint()
            return download
        except (trio.BrokenResourceError, ssl.SSLError):
            raise NotFetched("its connection broke") from None
        finally:
            await trio.aclose_forcefully(stream)

    async def _opened(self, url: MediaUrl, addresses: Sequence[str]) -> trio.abc.Stream:
        """A connection to the first address that takes one."""
        tried = addresses[:_MAX_ADDRESSES]
        for address in tried:
            stream = None
            with trio.move_on_after(math.inf if address is tried[-1] else _ATTEMPT_SECONDS), suppress(OSError):
                stream = await _connected(address, url.port)
            if stream is not None:
                return stream if url.scheme == "http" else await self._secured(stream, url.host)
        raise NotFetched("no connection could be made")

    async def _secured(self, stream: trio.SocketStream, host: str) -> trio.abc.Stream:
        if self._tls is None:
            self._tls = await trio.to_thread.run_sync(ssl.create_default_context)
        secured = trio.SSLStream(stream, self._tls, server_hostname=host, https_compatible=True)
        try:
            await secured.do_handshake()
        except BaseException as error:
            await trio.aclose_forcefully(secured)
            if isinstance(error, trio.BrokenResourceError):
                raise NotFetched(f"TLS failed: {_reason(error)}") from None
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
