"""Media fetcher: gets what a client's URL names, from hosts that are allowed, within bounds of bytes and time.

A host's name is resolved once for each fetch, and the addresses that were judged are those that are asked, also after a
redirect. Proxies of the environment are not used. Cancelled at any point, nothing is left but a thread that resolves
a name, which ends by itself.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import trio

from protocol.errors import Overloaded, ServerError
from protocol.media.download import Download, Progress
from protocol.outgoing.dialer import Dialer, addresses_of
from protocol.outgoing.hosts import AllowedHosts, HostRule
from protocol.outgoing.urls import HttpUrl, UrlError, parse_url, redirected

# Of one server at a time.
MAX_FETCHES = 64
_MAX_REDIRECTS = 3
_FLAG = "--openai-allowed-media-domains"
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """`hosts` are those that may be asked. A fetch ends after `timeout` seconds, and `max_bytes` bytes."""

    hosts: Sequence[HostRule] = ()
    max_bytes: int = 16 << 20
    timeout: float = 5.0


class MediaFetcher:
    """That of one server."""

    def __init__(
        self,
        settings: MediaSettings,
        tls: ssl.SSLContext | None = None,
        resolve: Callable[[str], Sequence[str]] = addresses_of,
    ) -> None:
        """As `Dialer`."""
        self._settings = settings
        self._hosts = AllowedHosts(settings.hosts, _FLAG)
        self._dialer = Dialer(tls, resolve)
        self._running = 0

    async def fetch(self, text: str, on_bytes: Callable[[int], None] = lambda size: None) -> bytearray:
        """What the URL names. `on_bytes` is told of what comes, and may raise.

        Raises:
            UrlError: it may not be fetched, or cannot.
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
            raise UrlError(
                f"that took longer than {self._settings.timeout:g} seconds (--openai-media-timeout)"
            ) from None
        finally:
            self._running -= 1

    async def fetch_all(
        self, urls: Iterable[str], on_bytes: Callable[[int], None] = lambda size: None
    ) -> dict[str, bytearray]:
        """What each URL names, all at once. Where one fails, the others end.

        Raises:
            UrlError, Overloaded: as `fetch`; so does what `on_bytes` raises, if it is a ServerError.
        """
        found: dict[str, bytearray] = {}
        failures: list[UrlError | ServerError] = []

        async def fetch(url: str) -> None:
            try:
                found[url] = await self.fetch(url, on_bytes)
            except (UrlError, ServerError) as error:
                if isinstance(error, UrlError):
                    error.url = url
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for each in urls:
                nursery.start_soon(fetch, each)
        if failures:
            raise failures[0]
        return found

    async def _fetched(self, url: HttpUrl, on_bytes: Callable[[int], None]) -> bytearray:
        addresses = self._hosts.usable(url, await self._dialer.addresses(url.host))
        for _ in range(_MAX_REDIRECTS + 1):
            found = await self._got(url, addresses, on_bytes)
            if not found.redirect:
                return found.body
            url = redirected(url, found.redirect)
            self._hosts.check(url)
            addresses = self._hosts.usable(url, addresses)
        raise UrlError(f"it was redirected more than {_MAX_REDIRECTS} times")

    async def _got(self, url: HttpUrl, addresses: Sequence[str], on_bytes: Callable[[int], None]) -> Download:
        stream = await self._dialer.connect(url, addresses)
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
            raise UrlError("its connection broke") from None
        finally:
            await trio.aclose_forcefully(stream)
