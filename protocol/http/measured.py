"""Measured exchange: an exchange that notes how it is answered, for the access log."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping

from protocol.http.body import BodyLimit
from protocol.http.exchange import BodyStream, Exchange, Handler, HttpRequest
from protocol.http.reply import Headers, Reply
from protocol.limits.request_memory import RequestShare
from protocol.messages import Buffer


class MeasuredExchange:
    """Implements `exchange.Exchange` by another one.

    Attributes:
        status: of the response; 0 where none has begun.
        bytes_out: of the content that was sent.
        is_complete: the whole response was sent.
    """

    __slots__ = ("_exchange", "_read", "_stream", "bytes_out", "is_complete", "status")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.status = 0
        self._read = 0
        self._stream: BodyStream | None = None
        self.bytes_out = 0
        self.is_complete = False

    @property
    def bytes_in(self) -> int:
        """Of the content, as it was read."""
        return self._read if self._stream is None else self._stream.received

    @property
    def method(self) -> str:
        return self._exchange.method

    @property
    def raw_path(self) -> bytes:
        return self._exchange.raw_path

    @property
    def query(self) -> bytes:
        return self._exchange.query

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        return self._exchange.headers

    @property
    def sent_headers(self) -> Iterable[tuple[bytes, bytes]]:
        return self._exchange.sent_headers

    @property
    def has_started(self) -> bool:
        return self._exchange.has_started

    @property
    def may_have_body(self) -> bool:
        return self._exchange.may_have_body

    @property
    def peer(self) -> str:
        return self._exchange.peer

    async def read_body(self, limit: BodyLimit, share: RequestShare, *, pause_seconds: float) -> Buffer:
        body = await self._exchange.read_body(limit, share, pause_seconds=pause_seconds)
        self._read = len(body)
        return body

    def stream_body(self, limit: BodyLimit, *, pause_seconds: float) -> BodyStream:
        self._stream = self._exchange.stream_body(limit, pause_seconds=pause_seconds)
        return self._stream

    def run(self, handler: Handler, request: HttpRequest) -> Awaitable[Reply | None]:
        return self._exchange.run(handler, request)

    async def reply(self, reply: Reply) -> None:
        await self._exchange.reply(reply)
        self._note(reply)

    async def reply_early(self, reply: Reply, *, linger: float) -> None:
        self._note(reply)
        await self._exchange.reply_early(reply, linger=linger)

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status
        await self._exchange.start(status, headers)

    async def send(self, data: bytes) -> None:
        await self._exchange.send(data)
        self.bytes_out += len(data)

    def send_at_once(self, data: bytes) -> bool:
        if not self._exchange.send_at_once(data):
            return False
        self.bytes_out += len(data)
        return True

    async def end(self) -> None:
        await self._exchange.end()
        self.is_complete = True

    def _note(self, reply: Reply) -> None:
        self.status = reply.status
        self.bytes_out = 0 if self.method == "HEAD" else reply.length
        self.is_complete = True
