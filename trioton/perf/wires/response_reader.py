"""Reader of HTTP/1 responses, as far as a load generator wants to know them. Sans-IO.

`begin` → `feed` what comes, until it returns that the response is whole → `begin` the next …

What every server of small answers sends, a length and a body, is read here; all else (chunks, bodies up to the end of
the connection) by llhttp.
"""

from __future__ import annotations

from collections.abc import Callable

import httptools

_END_OF_HEAD = b"\r\n\r\n"
_MOST_HEAD_BYTES = 65536
# Of the body of an answer that nobody wants, for the text of an error.
_MOST_KEPT = 65536
_LENGTH = b"\r\ncontent-length:"


class ResponseError(Exception):
    """What has come is no response."""


class ResponseReader:
    """One response after the other.

    Attributes:
        status: of the response, 0 before its head is there.
        closes: whether no other response follows on this connection.
    """

    __slots__ = ("_head", "_keeps", "_kept", "_left", "_on_body", "_parser", "_parts", "closes", "status")

    def __init__(self) -> None:
        self.status = 0
        self.closes = False
        self._keeps = False
        self._kept = 0
        self._left = -1
        self._head = b""
        self._parts: list[bytes] = []
        self._on_body: Callable[[bytes], None] | None = None
        self._parser: _Chunks | None = None

    def begin(self, *, keeps_body: bool = False, on_body: Callable[[bytes], None] | None = None) -> None:
        """A response is awaited. Its body is kept if that is asked for, or if the status says that it is an error;
        `on_body` gets the parts of a good one as they come."""
        self.status = 0
        self._keeps, self._on_body = keeps_body, on_body
        self._kept = 0
        self._left = -1
        self._head = b""
        self._parts = []
        self._parser = None

    @property
    def body(self) -> bytes:
        """What was kept of it."""
        return b"".join(self._parts)

    def feed(self, data: bytes) -> bool:
        """Take what has come; returns whether the response is whole.

        Raises:
            ResponseError: that is none, or more than one.
        """
        if self._left >= 0:
            return self._take_body(data)
        if self._parser is not None:
            return self._parser.feed(data)
        if self._head:
            data = self._head + data
        end = data.find(_END_OF_HEAD)
        if end < 0:
            self._head = data
            if len(data) > _MOST_HEAD_BYTES:
                raise ResponseError(f"the head of a response has more than {_MOST_HEAD_BYTES} bytes")
            return False
        head = data[: end + 2].lower()
        if head[:7] != b"http/1." or not head[9:12].isdigit():
            raise ResponseError(f"it is no answer of HTTP/1: {head[:40]!r}")
        self.status = int(head[9:12])
        if b"\r\nconnection: close" in head:
            self.closes = True
        at = head.find(_LENGTH)
        if at < 0 or b"\r\ntransfer-encoding:" in head:
            self._parser = _Chunks(self)
            return self._parser.feed(data)
        text = head[at + len(_LENGTH) : head.find(b"\r\n", at + 2)].strip()
        if not text.isdigit():
            raise ResponseError(f"the length of a response is {text[:40]!r}")
        self._left = int(text)
        return self._take_body(data[end + 4 :])

    def feed_end(self) -> bool:
        """The connection has ended; returns whether the response is whole by that."""
        return self._parser is not None and not self._parser.is_chunked

    def take_part(self, data: bytes) -> None:
        """A part of the body."""
        if self._keeps or (self.status != 200 and self._kept < _MOST_KEPT):
            self._kept += len(data)
            self._parts.append(data)
        if self._on_body is not None and self.status == 200:
            self._on_body(data)

    def _take_body(self, data: bytes) -> bool:
        self._left -= len(data)
        if data:
            self.take_part(data)
        if self._left < 0:
            raise ResponseError("there is more than the response to one request")
        return self._left == 0


class _Chunks:
    """A response whose length its head does not tell, by llhttp."""

    def __init__(self, reader: ResponseReader) -> None:
        self._reader = reader
        self._is_whole = False
        self.is_chunked = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bool:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ResponseError(str(error)) from None
        return self._is_whole

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"transfer-encoding":
            self.is_chunked = True

    def on_headers_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self._reader.closes = True

    def on_body(self, data: bytes) -> None:
        self._reader.take_part(data)

    def on_message_complete(self) -> None:
        self._is_whole = True
