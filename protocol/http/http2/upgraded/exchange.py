"""ASGI exchange: adapts an ASGI request, as hypercorn's HTTP/2 delivers it, to the exchange interface.

hypercorn hands a body over through a short channel. A reply sent while nobody reads that channel would leave its
connection stuck, with the reader waiting for room and the writer for the reader; so whatever of a body is not read here
is drained here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.typing import AppWrapper, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

from protocol.errors import ServerError
from protocol.http.body import MIN_BODY_RATE, BodyLimit, body_timeout
from protocol.http.errors import error_reply
from protocol.http.exchange import App, BodyStream, ClientGone, Handler, HttpRequest
from protocol.http.head import content_length
from protocol.http.reply import Headers, Reply
from protocol.limits.answer_memory import AnswerMemory
from protocol.limits.request_memory import LIMIT_NAME, STREAM_MEMORY, RequestMemory, RequestShare
from protocol.log.request_ids import REQUEST_ID
from protocol.messages import Buffer


def as_asgi(app: App, memory: RequestMemory, count_refusal: Callable[[str], None]) -> AppWrapper:
    """For one connection; its streams count in `memory`, and so do the responses that wait for its client."""
    answers = AnswerMemory(memory, count_refusal)

    async def http_only(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"  # `http2` makes nothing else
        exchange = AsgiExchange(scope, receive, send, answers)
        with RequestShare(memory, partial(count_refusal, LIMIT_NAME)) as share:
            try:
                share.take(STREAM_MEMORY)
            except ServerError as error:
                await exchange.reply_early(error_reply(error), linger=0)
                return
            await app(exchange)

    return ASGIWrapper(http_only)


class AsgiExchange:
    """Implements `exchange.Exchange`."""

    __slots__ = (
        *("_answers", "_receive", "_send", "has_started", "headers", "method", "peer", "query", "raw_path"),
        "sent_headers",
    )

    def __init__(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable, answers: AnswerMemory
    ) -> None:
        self.method = scope["method"]
        self.raw_path = scope["raw_path"]
        self.query = scope["query_string"]
        client = scope.get("client")
        self.peer = "" if not client else f"{client[0]}:{client[1]}"
        self.sent_headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
        self.headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            self.headers.setdefault(name, value)
        self.has_started = False
        self._receive = receive
        self._send = send
        self._answers = answers

    @property
    def may_have_body(self) -> bool:
        return True

    async def read_body(self, limit: BodyLimit, share: RequestShare, *, pause_seconds: float) -> Buffer:
        if (declared := self.headers.get(b"content-length")) is not None:
            limit.check(content_length(declared))
        body: bytes | bytearray = b""
        started = trio.current_time()
        while True:
            deadline = pause_seconds + min(trio.current_time(), started + len(body) / MIN_BODY_RATE)
            with trio.move_on_at(deadline) as waiting:
                message = await self._receive()
            if waiting.cancelled_caught:
                raise body_timeout(len(body), trio.current_time() - started)
            if message["type"] != "http.request":
                raise ClientGone
            if part := message["body"]:
                share.take(len(part))
                if not body:
                    body = part
                else:
                    if isinstance(body, bytes):
                        body = bytearray(body)
                    body += part
                limit.check(len(body))
            if not message["more_body"]:
                return body

    def stream_body(self, limit: BodyLimit, *, pause_seconds: float) -> BodyStream:
        if (declared := self.headers.get(b"content-length")) is not None:
            limit.check(content_length(declared))
        return _StreamedBody(self._receive, limit, pause_seconds)

    async def run(self, handler: Handler, request: HttpRequest) -> Reply | None:
        """Beside a watcher of the stream."""
        reply: Reply | None = None
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_on_disconnect, nursery.cancel_scope)
            try:
                reply = await handler(request)
            except Exception as exc:  # raised outside, where the nursery does not wrap it in a group
                failure = exc
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return reply

    async def _cancel_on_disconnect(self, scope: trio.CancelScope) -> None:
        await self._receive()  # the body has been read: nothing but the disconnect can come
        scope.cancel()

    async def reply(self, reply: Reply) -> None:
        size = reply.length
        self._answers.take(size)
        try:
            await self._start_sized(reply)
            await self._send({"type": "http.response.body", "body": reply.content, "more_body": False})
        finally:
            self._answers.give(size)

    async def reply_early(self, reply: Reply, *, linger: float) -> None:
        await self._start_sized(reply)
        await self._send({"type": "http.response.body", "body": reply.content, "more_body": True})
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._drain, ended)
            with trio.move_on_after(linger):
                await ended.wait()
            await self.end()
            nursery.cancel_scope.cancel()

    async def start(self, status: int, headers: Headers) -> None:
        self.has_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def send(self, data: bytes) -> None:
        if self.method == "HEAD":
            return
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def send_at_once(self, data: bytes) -> bool:
        return False

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start_sized(self, reply: Reply) -> None:
        named = ((REQUEST_ID, reply.request_id),) if reply.request_id else ()
        await self.start(reply.status, (*reply.headers, (b"content-length", b"%d" % reply.length), *named))

    async def _drain(self, ended: trio.Event) -> None:
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                ended.set()
                return
            if not message["more_body"]:
                ended.set()


class _StreamedBody:
    """A body that its handler reads as it comes. Implements `exchange.BodyStream`."""

    def __init__(self, receive: ASGIReceiveCallable, limit: BodyLimit, pause_seconds: float) -> None:
        self.received = 0
        self.has_ended = False
        self._receive = receive
        self._limit = limit
        self._pause_seconds = pause_seconds
        self._started = trio.current_time()

    async def receive(self) -> Buffer:
        while not self.has_ended:
            slowest = self._started + self.received / MIN_BODY_RATE
            with trio.move_on_at(self._pause_seconds + min(trio.current_time(), slowest)) as waiting:
                message = await self._receive()
            if waiting.cancelled_caught:
                raise body_timeout(self.received, trio.current_time() - self._started)
            if message["type"] != "http.request":
                raise ClientGone
            self.has_ended = not message["more_body"]
            self.received += len(message["body"])
            self._limit.check(self.received)
            if message["body"]:
                return message["body"]
        return b""
