"""One HTTP/1 exchange: a request whose head has come, and the way out for its response."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Protocol

from protocol.http.body import BodyLimit
from protocol.http.date import DateHeader
from protocol.http.exchange import Handler, HttpRequest
from protocol.http.head import Head
from protocol.http.reply import Headers, Reply
from protocol.limits.request_memory import RequestShare
from protocol.messages import Buffer

# Larger content is not copied to be joined with its head.
JOINED_SIZE = 64 * 1024
# Their length is that of what a GET would get (RFC 9110, 8.6).
_BODILESS = (204, 304)
_STATUS_LINES = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, phrase)
    for status, phrase in (
        (200, b"OK"),
        (400, b"Bad Request"),
        (401, b"Unauthorized"),
        (403, b"Forbidden"),
        (404, b"Not Found"),
        (405, b"Method Not Allowed"),
        (408, b"Request Timeout"),
        (413, b"Content Too Large"),
        (431, b"Request Header Fields Too Large"),
        (500, b"Internal Server Error"),
        (501, b"Not Implemented"),
        (503, b"Service Unavailable"),
        (504, b"Gateway Timeout"),
    )
}


class Connection(Protocol):
    """What an exchange needs of its connection."""

    @property
    def date(self) -> DateHeader: ...

    @property
    def closes(self) -> bool:
        """Whether the connection ends with the present exchange, whatever its client wants."""

    async def read_body(self, head: Head, limit: BodyLimit, share: RequestShare, pause_seconds: float) -> Buffer:
        """As `Exchange.read_body`."""

    async def send(self, data: Buffer) -> None: ...

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        """As `send`, from several places in memory."""

    def linger(self, seconds: float) -> None:
        """The client is still sending what nobody will read; give it that long."""


def response_head(
    status: int,
    headers: Headers,
    date: DateHeader,
    *,
    length: int | None = None,
    closes: bool,
    is_chunked: bool = False,
    is_http_1_0: bool = False,
) -> bytes:
    lines = [_first_lines(status, headers)]
    if length is not None:
        lines.append(b"content-length: %d\r\n" % length)
    if is_chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    if closes:
        lines.append(b"connection: close\r\n")
    elif is_http_1_0:  # where a connection that stays is an exception
        lines.append(b"connection: keep-alive\r\n")
    lines.append(date.line())
    return b"".join(lines)


@lru_cache(maxsize=256)
def usual_head(status: int, headers: Headers, length: int) -> bytes:
    """That of a response of known length on a connection that stays, up to its date."""
    return _first_lines(status, headers) + b"content-length: %d\r\n" % length


# A server's responses have few different headers.
@lru_cache(maxsize=256)
def _first_lines(status: int, headers: Headers) -> bytes:
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return line + b"".join([b"%b: %b\r\n" % header for header in headers])


class Http1Exchange:
    """Implements `exchange.Exchange`."""

    __slots__ = (
        "_connection",
        "_head",
        "_is_chunked",
        "closes",
        "has_started",
        "headers",
        "is_complete",
        "method",
        "raw_path",
        "sent_headers",
    )

    def __init__(self, connection: Connection, head: Head) -> None:
        self._connection = connection
        self._head = head
        self._is_chunked = False
        self.method = head.method
        self.raw_path = head.raw_path
        self.headers = head.headers
        self.sent_headers = head.sent_headers
        self.closes = not head.keeps_alive
        self.has_started = False
        self.is_complete = False

    @property
    def may_have_body(self) -> bool:
        return self._head.has_body

    @property
    def is_between_chunks(self) -> bool:
        """Whether the next bytes of the response are the size of a chunk, unless some are just being sent."""
        return self._is_chunked and self.has_started and not self.is_complete

    def read_body(self, limit: BodyLimit, share: RequestShare, *, pause_seconds: float) -> Awaitable[Buffer]:
        limit.check(self._head.content_length)
        return self._connection.read_body(self._head, limit, share, pause_seconds)

    def run(self, handler: Handler, request: HttpRequest) -> Awaitable[Reply | None]:
        """The connection cancels everything when the client leaves, and this with it."""
        return handler(request)

    async def reply(self, reply: Reply) -> None:
        self._begin()
        head = response_head(
            reply.status,
            reply.headers,
            self._connection.date,
            length=reply.length,
            closes=self.closes,
            is_http_1_0=self._head.is_http_1_0,
        )
        if self._head.method == "HEAD" or reply.status in _BODILESS:
            await self._connection.send(head)
        elif reply.length > JOINED_SIZE:
            await self._connection.send_parts((head, reply.body, *reply.tail))
        else:
            await self._connection.send(b"".join((head, reply.body, *reply.tail)))
        self.is_complete = True

    async def reply_early(self, reply: Reply, *, linger: float) -> None:
        self.closes = True
        self._connection.linger(linger)
        await self.reply(reply)

    # A response of unknown length.

    async def start(self, status: int, headers: Headers) -> None:
        self._is_chunked = not self._head.is_http_1_0
        if not self._is_chunked:
            self.closes = True
        self._begin()
        await self._connection.send(
            response_head(status, headers, self._connection.date, closes=self.closes, is_chunked=self._is_chunked)
        )

    async def send(self, data: bytes) -> None:
        if data:
            await self._connection.send(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    async def end(self) -> None:
        if self._is_chunked:
            await self._connection.send(b"0\r\n\r\n")
        self.is_complete = True

    def _begin(self) -> None:
        self.has_started = True
        self.closes = self.closes or self._connection.closes
