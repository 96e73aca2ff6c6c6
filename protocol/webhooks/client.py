"""Webhook client: posts a message to a receiver on an allowed host, and follows nothing that it answers.

As for all that clients name, the addresses that were judged are those that are asked (`protocol.outgoing`). Cancelled,
nothing is left but a thread that resolves a name.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence

import trio

from protocol.outgoing.dialer import Dialer
from protocol.outgoing.hosts import AllowedHosts
from protocol.outgoing.urls import HttpUrl, UrlError, parse_url
from protocol.webhooks.exchange import Answer, Exchange

# As Standard Webhooks has it.
TIMEOUT_SECONDS = 15.0
_CHUNK = 4096
# A name whose server does not answer holds its thread for longer than its message is tried: those of one caller's
# receivers must leave some to others'.
_MAX_RESOLVERS = 128


class WebhookClient:
    """That of one server."""

    def __init__(
        self, hosts: AllowedHosts, dialer: Dialer | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._hosts = hosts
        self._dialer = dialer or Dialer(most_resolvers=_MAX_RESOLVERS)
        self._timeout = timeout_seconds

    def checked(self, text: str) -> HttpUrl:
        """The URL of a receiver, as far as it can be judged by itself.

        Raises:
            UrlError: it is none, or of a host that is not allowed.
        """
        url = parse_url(text)
        self._hosts.check(url)
        if url.scheme != "https" and not self._hosts.is_named(url):
            raise UrlError("expected an https URL: http is for hosts that the operator has named")
        return url

    async def post(self, text: str, headers: Sequence[tuple[str, str]], body: bytes) -> Answer:
        """Raises UrlError: it may not be asked, or has not answered."""
        url = self.checked(text)
        try:
            with trio.fail_after(self._timeout):
                addresses = self._hosts.usable(url, await self._dialer.addresses(url.host))
                return await self._answer(url, addresses, headers, body)
        except trio.TooSlowError:
            raise UrlError(f"there was no answer within {self._timeout:g} seconds") from None

    async def _answer(
        self, url: HttpUrl, addresses: Sequence[str], headers: Sequence[tuple[str, str]], body: bytes
    ) -> Answer:
        stream = await self._dialer.connect(url, addresses)
        try:
            exchange = Exchange()
            await stream.send_all(exchange.request(url, headers, body))
            while (answer := exchange.read()) is None:
                exchange.receive(bytes(await stream.receive_some(_CHUNK)))
            return answer
        except (trio.BrokenResourceError, ssl.SSLError):
            raise UrlError("its connection broke") from None
        finally:
            await trio.aclose_forcefully(stream)
