"""One HTTP/2 exchange that runs in a task: the request of a stream whose headers have arrived, and the sender of its
response."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import trio
from h2.errors import ErrorCodes

from protocol.errors import Internal, Overloaded
from protocol.http.body import MIN_BODY_RATE, BodyLimit, body_timeout
from protocol.http.errors import error_reply
from protocol.http.exchange import BodyStream, ClientGone, Handler, HttpRequest
from protocol.http.http2.body import StreamBody
from protocol.http.http2.head import StreamHead
from protocol.http.http2.output import HttpOutput
from protocol.http.reply import Headers, Reply
from protocol.limits.request_memory import RequestShare
from protocol.messages import Buffer
from protocol.sync.joined import JOINED_AT_ONCE, join
from protocol.sync.sliced import run_sliced
from protocol.sync.wakeup import Wakeup

logger = logging.getLogger(__name__)


class StreamOwner(Protocol):
    """The connection's streams."""

    @property
    def out(self) -> HttpOutput: ...

    def acknowledge(self, stream_id: int, body: StreamBody) -> None:
        """Allow the client to send as much more as has arrived of the body (WINDOW_UPDATE)."""


class Http2Exchange:
    """Implements `exchange.Exchange`. `scope` surrounds all that runs for it and is cancelled when the client resets
    the stream."""

    __slots__ = (
        *("_arrived", "_owner", "body", "has_started", "headers", "id", "is_complete", "is_dropping", "method"),
        *("expects_continue", "query", "raw_path", "scope", "sent_headers"),
    )

    def __init__(self, owner: StreamOwner, stream_id: int, head: StreamHead, body: StreamBody) -> None:
        self._owner = owner
        self.id = stream_id
        self.method = head.head.method
        self.raw_path = head.head.raw_path
        self.query = head.head.target.partition(b"?")[2]
        self.headers = head.head.headers
        self.sent_headers = head.head.sent_headers
        self.expects_continue = head.head.expects_continue
        self.body = body
        self.scope = trio.CancelScope()
        self.has_started = False
        self.is_complete = False
        self.is_dropping = False  # what comes of the body
        self._arrived = Wakeup()

    async def run_in(self, app: Callable[[Http2Exchange], Awaitable[None]]) -> None:
        """Returns when the response has ended, or cannot be completed."""
        try:
            await app(self)
        except ClientGone:
            pass
        except Exception:
            logger.exception("%s %r failed", self.method, self.raw_path)
            if not self.has_started:
                await self._reply_to_defect()

    async def _reply_to_defect(self) -> None:
        with suppress(ClientGone):
            await self.reply(error_reply(Internal("internal error")))

    def note_arrival(self) -> None:
        """More of the body has arrived, or its end."""
        if self.is_dropping:
            self.body.drop()
            self._owner.acknowledge(self.id, self.body)
        self._arrived.wake()

    # The request.

    @property
    def peer(self) -> str:
        return self._owner.out.peer

    @property
    def may_have_body(self) -> bool:
        return True

    async def read_body(self, limit: BodyLimit, share: RequestShare, *, pause_seconds: float) -> Buffer:
        body = self.body
        limit.check(body.declared or 0)
        if self.expects_continue and not body.has_ended and not body.received:
            self._owner.out.send_head(self.id, 100, ())
        counted = 0
        started = trio.current_time()
        while True:
            if body.received > counted:
                share.take(body.received - counted)
                counted = body.received
                limit.check(counted)
            self._owner.acknowledge(self.id, body)
            if body.has_ended:
                parts = body.take_parts() if body.received > JOINED_AT_ONCE else None
                return body.whole() if parts is None else await run_sliced(join(parts))
            deadline = pause_seconds + min(trio.current_time(), started + counted / MIN_BODY_RATE)
            with trio.move_on_at(deadline) as waiting:
                await self._arrived.wait()
            if waiting.cancelled_caught:
                raise body_timeout(counted, trio.current_time() - started)

    def stream_body(self, limit: BodyLimit, *, pause_seconds: float) -> BodyStream:
        limit.check(self.body.declared or 0)
        return _StreamedBody(self, limit, pause_seconds)

    async def more_of_body(self) -> Buffer:
        """What has come of a body that is streamed, once something has, or its end."""
        body = self.body
        if self.expects_continue and not body.has_ended and not body.received:
            self.expects_continue = False
            self._owner.out.send_head(self.id, 100, ())
        data = body.take()
        while not data and not body.has_ended:
            await self._arrived.wait()
            data = body.take()
        self._owner.acknowledge(self.id, body)
        return data

    async def run(self, handler: Handler, request: HttpRequest) -> Reply | None:
        """Cancelled by the connection when the client resets the stream."""
        return await handler(request)

    # The response.

    async def reply(self, reply: Reply) -> None:
        self.has_started = True
        try:
            await self._owner.out.send_reply(self.id, reply, is_head=self.method == "HEAD")
        except Overloaded:
            self.has_started = False
            raise
        self.is_complete = True

    async def reply_early(self, reply: Reply, *, linger: float) -> None:
        """Send the complete response at once; the stream is reset once the client has had time to read it."""
        await self.reply(reply)
        self.is_dropping = True
        self.note_arrival()
        with trio.move_on_after(linger):
            while not self.body.has_ended:
                await self._arrived.wait()

    async def start(self, status: int, headers: Headers) -> None:
        self.has_started = True
        self._owner.out.send_head(self.id, status, headers)

    async def send(self, data: bytes) -> None:
        if data and self.method != "HEAD":
            await self._owner.out.send_piece(self.id, (data,))

    def send_at_once(self, data: bytes) -> bool:
        return False

    async def end(self) -> None:
        await self._owner.out.send_piece(self.id, (), end_stream=True)
        self.is_complete = True

    @property
    def reset_code(self) -> ErrorCodes | None:
        """The error code to reset the stream with after the exchange; None where it has ended normally."""
        if not self.is_complete:
            return ErrorCodes.INTERNAL_ERROR
        return None if self.body.has_ended else ErrorCodes.NO_ERROR


class _StreamedBody:
    """A body that its handler reads as it comes: the window opens as it is read. Implements `exchange.BodyStream`."""

    def __init__(self, exchange: Http2Exchange, limit: BodyLimit, pause_seconds: float) -> None:
        self.received = 0
        self.has_ended = False
        self._exchange = exchange
        self._limit = limit
        self._pause_seconds = pause_seconds
        self._started = trio.current_time()

    async def receive(self) -> Buffer:
        if self.has_ended:
            return b""
        slowest = self._started + self.received / MIN_BODY_RATE
        data: Buffer = b""
        with trio.move_on_at(self._pause_seconds + min(trio.current_time(), slowest)) as waiting:
            data = await self._exchange.more_of_body()
        if waiting.cancelled_caught:
            raise body_timeout(self.received, trio.current_time() - self._started)
        self.received += len(data)
        self._limit.check(self.received)
        self.has_ended = not data
        return data
