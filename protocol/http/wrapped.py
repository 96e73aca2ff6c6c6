"""Wrapped exchange: an exchange that passes everything on to another one, for those that differ in a few things."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping

from protocol.http.body import BodyLimit
from protocol.http.exchange import BodyStream, Exchange, Handler, HttpRequest
from protocol.http.reply import Headers, Reply
from protocol.limits.request_memory import RequestShare
from protocol.messages import Buffer


class WrappedExchange:
    """Implements `exchange.Exchange` by another one."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @property
    def method(self) -> str:
        return self._exchange.method

    @property
    def raw_path(self) -> bytes:
        return self._exchange.raw_path

    @property
    def asked_path(self) -> bytes:
        """The path that the client has asked for, whatever the request runs as."""
        inner = self._exchange
        return inner.asked_path if isinstance(inner, WrappedExchange) else inner.raw_path

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
        return await self._exchange.read_body(limit, share, pause_seconds=pause_seconds)

    def stream_body(self, limit: BodyLimit, *, pause_seconds: float) -> BodyStream:
        return self._exchange.stream_body(limit, pause_seconds=pause_seconds)

    def run(self, handler: Handler, request: HttpRequest) -> Awaitable[Reply | None]:
        return self._exchange.run(handler, request)

    async def reply(self, reply: Reply) -> None:
        await self._exchange.reply(reply)

    async def reply_early(self, reply: Reply, *, linger: float) -> None:
        await self._exchange.reply_early(reply, linger=linger)

    async def start(self, status: int, headers: Headers) -> None:
        await self._exchange.start(status, headers)

    async def send(self, data: bytes) -> None:
        await self._exchange.send(data)

    def send_at_once(self, data: bytes) -> bool:
        return self._exchange.send_at_once(data)

    async def end(self) -> None:
        await self._exchange.end()
