"""One HTTP/1 exchange as the application sees it: a request whose head has arrived, and the sender of its response."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from protocol.http.body import BodyLimit
from protocol.http.date import DateHeader
from protocol.http.exchange import BodyStream, Handler, HttpRequest
from protocol.http.head import Head
from protocol.http.http1.body import is_here, take_whole
from protocol.http.http1.fast_path import JOINED_SIZE
from protocol.http.http1.protocol import Http1Protocol
from protocol.http.http1.response import last_lines
from protocol.http.reply import Headers, Reply
from protocol.limits.request_memory import RequestShare
from protocol.messages import Buffer
from protocol.reactor.transport import Wire

TOO_MANY_REQUESTS = 429
# Their length is that of what a GET would get (RFC 9110, 8.6).
_BODILESS = (204, 304)


class Connection(Protocol):
    """The interface of the connection to its exchange."""

    @property
    def date(self) -> DateHeader: ...

    @property
    def wire(self) -> Wire: ...

    @property
    def protocol(self) -> Http1Protocol: ...

    async def read_body(self, limit: BodyLimit, share: RequestShare, pause_seconds: float) -> Buffer:
        """As `Exchange.read_body`."""

    def stream_body(self, limit: BodyLimit, pause_seconds: float) -> BodyStream:
        """As `Exchange.stream_body`."""
        ...

    async def may_send(self) -> bool:
        """Whether anything can still be sent, once no other task is sending."""

    async def send(self, data: Buffer) -> None: ...

    def send_chunk_at_once(self, data: bytes) -> bool:
        """As `BodyWriter.send_at_once`."""

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        """As `send`, from several places in memory."""

    def end_response(self) -> None:
        """All of it was sent."""

    def linger(self, seconds: float) -> None:
        """The client is still sending what nobody will read; give it that long."""


class Http1Exchange:
    """Implements `exchange.Exchange`. Cancelled while it sends, it leaves a response that is not whole."""

    __slots__ = ("_connection", "_head", "_protocol", "headers", "method", "raw_path", "sent_headers")

    def __init__(self, connection: Connection, head: Head) -> None:
        self._connection = connection
        self._protocol = connection.protocol
        self._head = head
        self.method = head.method
        self.raw_path = head.raw_path
        self.headers = head.headers
        self.sent_headers = head.sent_headers

    @property
    def peer(self) -> str:
        return self._connection.wire.peer

    @property
    def query(self) -> bytes:
        return self._head.target.partition(b"?")[2]

    @property
    def has_started(self) -> bool:
        return self._protocol.has_begun_response

    @property
    def may_have_body(self) -> bool:
        return self._head.has_body

    def read_body(self, limit: BodyLimit, share: RequestShare, *, pause_seconds: float) -> Awaitable[Buffer]:
        limit.check(self._head.content_length)
        return self._connection.read_body(limit, share, pause_seconds)

    def stream_body(self, limit: BodyLimit, *, pause_seconds: float) -> BodyStream:
        limit.check(self._head.content_length)
        return self._connection.stream_body(limit, pause_seconds)

    def run(self, handler: Handler, request: HttpRequest) -> Awaitable[Reply | None]:
        """Cancelled by the connection when the client leaves."""
        return handler(request)

    async def reply(self, reply: Reply) -> None:
        connection = self._connection
        if not await connection.may_send():
            return
        length = reply.length
        last = last_lines(reply.request_id, connection.date.line())
        head = self._protocol.begin_response(reply.status, reply.headers, last, length)
        if self._head.method == "HEAD" or reply.status in _BODILESS:
            await connection.send(head)
        elif length > JOINED_SIZE:
            await connection.send_parts((head, reply.body, *reply.tail))
        else:
            await connection.send(b"".join((head, reply.body, *reply.tail)))
        connection.end_response()

    async def reply_early(self, reply: Reply, *, linger: float) -> None:
        # A client that is to try again soon need not connect again, if nothing more comes of this request.
        if reply.status == TOO_MANY_REQUESTS and is_here(self._protocol):
            take_whole(self._protocol)
        else:
            self._protocol.closes = True
            self._connection.linger(linger)
        await self.reply(reply)

    # A response of unknown length; to HEAD its head alone is sent.

    async def start(self, status: int, headers: Headers) -> None:
        if await self._connection.may_send():
            await self._connection.send(
                self._protocol.begin_response(status, headers, self._connection.date.line()),
            )

    async def send(self, data: bytes) -> None:
        if data and self._head.method != "HEAD" and await self._connection.may_send():
            await self._connection.send(self._protocol.frame(data))

    def send_at_once(self, data: bytes) -> bool:
        return self._head.method == "HEAD" or self._connection.send_chunk_at_once(data)

    async def end(self) -> None:
        if await self._connection.may_send():
            await self._connection.send(b"" if self._head.method == "HEAD" else self._protocol.end_of_body())
            self._connection.end_response()
