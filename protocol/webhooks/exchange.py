"""One POST over HTTP/1.1 of which only the answer's head is of interest. Sans-IO, around h11.

send `request(…)` → `receive` what comes, then `read` → … until it returns an answer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import h11

from protocol.outgoing.urls import HttpUrl, UrlError

# A receiver that goes on without ever answering.
_MOST_EVENTS = 16
_MOST_HEAD_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Answer:
    """`retry_after` is that header, as it is."""

    status: int
    retry_after: str = ""


class Exchange:
    def __init__(self) -> None:
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD_BYTES)
        self._events = 0

    def request(self, url: HttpUrl, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
        own = [
            ("Host", url.authority),
            ("User-Agent", "trioton"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        parts = (
            h11.Request(method="POST", target=url.target, headers=[*own, *headers]),
            h11.Data(body),
            h11.EndOfMessage(),
        )
        return b"".join([self._connection.send(part) or b"" for part in parts])

    def receive(self, data: bytes) -> None:
        """Take what has come; nothing for its end."""
        try:
            self._connection.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise _no_http(error) from None

    def read(self) -> Answer | None:
        """None where more must come. Raises UrlError: that is no answer of HTTP."""
        try:
            while (event := self._connection.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    after = dict(event.headers).get(b"retry-after", b"")
                    return Answer(event.status_code, after.decode("latin-1"))
                self._events += 1
                if isinstance(event, h11.ConnectionClosed) or self._events > _MOST_EVENTS:
                    raise UrlError("its connection ended without an answer")
        except h11.RemoteProtocolError as error:
            raise _no_http(error) from None
        return None


def _no_http(error: h11.RemoteProtocolError) -> UrlError:
    return UrlError(f"its answer is cut short, or none of HTTP: {error!s:.200}")
