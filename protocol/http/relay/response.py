"""Reader of the responses that the core's edge sends over HTTP/1. Sans-IO.

`receive` what comes → `head`, once it is there → `take` the content, until it `has_ended`
"""

from __future__ import annotations

from dataclasses import dataclass

import httptools

from protocol.http.reply import Headers

_END_OF_HEAD = b"\r\n\r\n"
_BODILESS = (204, 304)
_REQUEST_ID = b"x-request-id"
# Of one connection, and made anew by the edge that the client is connected with.
_OWN = frozenset((b"connection", b"keep-alive", b"date", b"content-length", b"transfer-encoding"))


class NoResponse(Exception):
    """The core's edge is gone, or what has come is no response."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """`length` is that of the content, where the head tells it; `closes` says that no other response follows.
    `request_id` is not among the headers."""

    status: int
    headers: Headers
    length: int | None
    closes: bool
    request_id: bytes


class ResponseReader:
    """Of one response, behind those of status 100.

    Attributes:
        head: None until it has come.
        has_ended: the whole response has come.
    """

    def __init__(self, *, is_to_head: bool = False) -> None:
        """`is_to_head`: the request was a HEAD."""
        self.head: ResponseHead | None = None
        self.has_ended = False
        self._is_to_head = is_to_head
        self._rest = b""
        self._left: int | None = None
        self._chunks: _Chunks | None = None
        self._parts: list[bytes] = []

    @property
    def left(self) -> int | None:
        """Bytes of the content that have not come yet; None where that is not known."""
        return self._left

    def receive(self, data: bytes) -> bool:
        """Take what has come; none is the end of the connection. Returns whether the core asks for the body (100).

        Raises:
            NoResponse: it ends here, or is none.
        """
        if not data:
            raise NoResponse("the connection has ended")
        if self.head is not None:
            self._take(data)
            return False
        data = self._rest + data
        end = data.find(_END_OF_HEAD)
        self._rest = data
        if end < 0:
            return False
        self._rest = data[end + len(_END_OF_HEAD) :]
        head = _parsed(data[:end])
        if head.status == 100:
            return True
        self.head = head
        if self._is_to_head or head.status in _BODILESS:
            self.has_ended = True
        elif head.length is None:
            self._chunks = _Chunks(self._parts)
            self._chunks.feed(data[: end + len(_END_OF_HEAD)])
        else:
            self._left = head.length
            self.has_ended = not self._left
        if rest := self._rest:
            self._rest = b""
            self._take(rest)
        return False

    def note_received(self, size: int) -> None:
        """So many bytes of content were read by somebody else, into memory of its own."""
        assert self._left is not None
        self._left -= size
        self.has_ended = not self._left

    def take(self) -> list[bytes]:
        """The content that has come since the last call."""
        if self._chunks is not None:
            return self._chunks.take()
        parts, self._parts = self._parts, []
        return parts

    def _take(self, data: bytes) -> None:
        if self.has_ended:
            raise NoResponse("there is more than the response to one request")
        if self._chunks is not None:
            self.has_ended = self._chunks.feed(data)
            return
        assert self._left is not None
        self._left -= len(data)
        if self._left < 0:
            raise NoResponse("there is more than the response to one request")
        self._parts.append(data)
        self.has_ended = not self._left


class _Chunks:
    """Content whose length its head does not tell, by llhttp."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts
        self._is_whole = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bool:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise NoResponse(str(error)) from None
        return self._is_whole

    def take(self) -> list[bytes]:
        parts = [*self._parts]
        self._parts.clear()
        return parts

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self._is_whole = True


def _parsed(data: bytes) -> ResponseHead:
    first, *lines = data.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise NoResponse(f"it is no answer of HTTP/1: {first[:40]!r}")
    headers: list[tuple[bytes, bytes]] = []
    length: int | None = None
    closes, request_id = False, b""
    for line in lines:
        name, _, value = line.partition(b":")
        value = value.strip()
        lower = name.lower()
        if lower == b"content-length":
            length = int(value)
        elif lower == b"connection":
            closes = value.lower() == b"close"
        elif lower == _REQUEST_ID:
            request_id = value
        elif lower not in _OWN:
            headers.append((name, value))
    return ResponseHead(int(rest[:3]), tuple(headers), length, closes, request_id)
