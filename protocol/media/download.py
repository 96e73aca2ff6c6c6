"""Download: one GET over HTTP/1.1 as a state machine, within a bound of bytes. Sans-IO, around h11.

send `request(url)` → `receive` what comes, then `read` → … until it returns DONE → `redirect` or `body`
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

import h11

from protocol.outgoing.urls import HttpUrl, UrlError

_OK, _REDIRECTS = 200, (301, 302, 303, 307, 308)
# What a host sends may consist of very many parts: so many are read at a time.
_PARTS = 16


class Progress(Enum):
    """What is to be done next: receive more, read on, or nothing."""

    NEEDS_DATA = auto()
    HAS_MORE = auto()
    DONE = auto()


class Download:
    """Attributes:
    redirect: where the answer points to; empty if it does not.
    body: of the answer, complete if there is no redirect.
    """

    def __init__(self, most: int, on_bytes: Callable[[int], None] = lambda size: None) -> None:
        """At most `most` bytes; `on_bytes` is told of those that come, and may raise."""
        self.redirect = ""
        self.body = bytearray()
        self._most = most
        self._on_bytes = on_bytes
        self._connection = h11.Connection(h11.CLIENT)

    def request(self, url: HttpUrl) -> bytes:
        headers = [
            ("Host", url.authority),
            ("User-Agent", "trioton"),
            ("Accept", "image/*"),
            ("Accept-Encoding", "identity"),
            ("Connection", "close"),
        ]
        sent = self._connection.send(h11.Request(method="GET", target=url.target, headers=headers)) or b""
        return sent + (self._connection.send(h11.EndOfMessage()) or b"")

    def receive(self, data: bytes) -> None:
        """Take what has come; nothing for its end."""
        try:
            self._connection.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise _no_http(error) from None

    def read(self) -> Progress:
        """Go on with what has come, for a short time.

        Raises:
            UrlError: the answer has no body that is wanted, is none of HTTP, or too long.
        """
        try:
            for _ in range(_PARTS):
                event = self._connection.next_event()
                if event is h11.NEED_DATA:
                    return Progress.NEEDS_DATA
                if self._take(event):
                    return Progress.DONE
        except h11.RemoteProtocolError as error:
            raise _no_http(error) from None
        return Progress.HAS_MORE

    def _take(self, event: object) -> bool:
        match event:
            case h11.Response():
                self._begin(event)
                return bool(self.redirect)
            case h11.Data(data=data):
                self._check(len(self.body) + len(data))
                self._on_bytes(len(data))
                self.body += data
            case h11.EndOfMessage():
                return True
            case h11.ConnectionClosed():
                raise UrlError("its connection ended without an answer")
        return False

    def _begin(self, response: h11.Response) -> None:
        headers = {name: value.decode("latin-1") for name, value in response.headers}
        if response.status_code in _REDIRECTS and headers.get(b"location"):
            self.redirect = headers[b"location"]
            return
        if response.status_code != _OK:
            raise UrlError(f"its answer has status {response.status_code}")
        if headers.get(b"content-encoding", "identity").lower() != "identity":
            raise UrlError("its answer is compressed, although that was not asked for")
        self._check(int(headers.get(b"content-length", 0)))  # h11 has read it

    def _check(self, size: int) -> None:
        if size > self._most:
            raise UrlError(f"it has more than {self._most} bytes (--openai-media-max-bytes)")


def _no_http(error: h11.RemoteProtocolError) -> UrlError:
    return UrlError(f"its answer is cut short, or none of HTTP: {error}")
