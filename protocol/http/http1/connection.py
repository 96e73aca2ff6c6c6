"""HTTP/1 on one connection: a task that reads a request, runs the application and answers, one exchange at a time.

    wire -> head and body -> application -> reply -> wire

A second task has the next bytes of the connection in sight while a request runs for long, so that a client that leaves
cancels it. Nothing is paid for that by requests that are answered soon.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from protocol.errors import Internal, ServerError
from protocol.http.body import BodyLimit
from protocol.http.date import DateHeader
from protocol.http.direct_infer import DirectInference
from protocol.http.errors import HeadersTooLarge, HeaderTimeout, LimitError, error_reply
from protocol.http.exchange import App, ClientGone
from protocol.http.head import Head, malformed
from protocol.http.http1.body import IncomingBody
from protocol.http.http1.chunks import LineTooLong
from protocol.http.http1.exchange import Http1Exchange, response_head
from protocol.http.http1.fast_path import RECEIVE_SIZE, FastPath, Unfinished
from protocol.http.http1.head import END_OF_HEAD, HTTP2_PREFACE, is_worth_keeping, parse_head, upgrade_settings
from protocol.http.settings import GOODBYE_SECONDS, LEAVE_SECONDS, ConnectionLimits, OnLimit
from protocol.limits.request_memory import RequestShare
from protocol.messages import Buffer
from protocol.reactor.transport import Wire
from protocol.sync.wakeup import Wakeup

logger = logging.getLogger(__name__)

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_HOP_BY_HOP = frozenset({b"host", b"connection", b"upgrade", b"http2-settings", b"transfer-encoding", b"keep-alive"})


@dataclass(frozen=True, slots=True)
class ChangeToHttp2:
    """The client wants HTTP/2 from here on: `rest` has come already. After an upgrade there are its settings and the
    headers of its request."""

    rest: bytes
    settings: bytes | None = None
    headers: list[tuple[bytes, bytes]] | None = None


class Http1:
    """`on_limit` is told the name of each limit that bites."""

    def __init__(
        self,
        app: App,
        wire: Wire,
        limits: ConnectionLimits,
        on_limit: OnLimit,
        date: DateHeader,
        *,
        direct: DirectInference | None = None,
        may_upgrade: bool = True,
    ) -> None:
        self._app = app
        self._direct = direct
        self._fast_path = FastPath(wire, direct, limits, date)
        self._half_close = self._fast_path.half_close
        self.wire = wire
        self.limits = limits
        self.on_limit = on_limit
        self.date = date
        self._may_upgrade = may_upgrade
        self._buffer = b""
        self._last_head = b""
        self._parsed: Head | None = None
        self._exchange: Http1Exchange | None = None
        self._most_served = self._fast_path.most = limits.max_requests_per_connection or math.inf
        self._reading = trio.CancelScope()  # around all exchanges, cancelled between two of them
        self._running: trio.CancelScope | None = None  # all
        self._deadline = math.inf  # of the wait for a request, or for its head
        self._is_timing_head = False
        self._is_stopped = False  # the wait for a request is cancelled
        self._has_ended = False  # no request comes after the present one
        self._is_gone = False  # the client has left, or takes nothing any more
        self._probing: trio.Event | None = None  # set when a probe of a half-closed client is out
        self._is_sending = False  # a part of a response
        self._is_leaving = False
        self._has_unread = False  # the client may still be sending what nobody will read
        self._linger = GOODBYE_SECONDS
        self._change: ChangeToHttp2 | None = None
        # Which request ran, or was the last one, when the connection was last looked at.
        self._seen = -1
        # The watcher's; what has come behind the present request.
        self._is_watched = False
        self._ahead = b""
        self._watching = Wakeup()
        self._arrived = Wakeup()

    async def run(self) -> ChangeToHttp2 | None:
        """Serve until either side ends the connection, or HTTP/2 begins. Cancelling ends it at once, with what runs."""
        async with trio.open_nursery() as nursery:
            self._running = nursery.cancel_scope
            nursery.start_soon(self._watch)
            last: Http1Exchange | None = None
            with self._reading, suppress(ClientGone):
                last = await self._serve()
            if last is not None:
                await self._run(last)
            elif self._reading.cancelled_caught and not self._has_ended:
                await self._time_out()
            nursery.cancel_scope.cancel()
        if self._change is None and not self._is_gone and self._has_unread:
            with trio.move_on_after(self._linger):
                await self._say_goodbye()
        return self._change

    def check_time(self, now: float) -> None:
        """Called every now and then: a scope with a deadline, or a watcher, for each request would cost more."""
        is_new = self._seen != self._fast_path.served
        self._seen = self._fast_path.served
        if self._fast_path.is_busy:
            self._deadline = math.inf
            if not is_new:
                self._fast_path.take_long(now)
        elif self._exchange is None:
            if is_new or self._deadline == math.inf:
                self._deadline = now + self._idle_timeout
            elif now >= self._deadline and not self._fast_path.has_begun():
                self._stop_reading()
        else:
            self._deadline = math.inf
            if not is_new and not self._has_unread:
                self._watching.wake()

    def leave(self) -> None:
        """The server stops: say in the next answer that it is the last one, and let `run` return behind it, or when no
        request has come for `LEAVE_SECONDS`."""
        if self._is_leaving:
            return
        self._is_leaving = self._fast_path.closes = True
        self._deadline = min(self._deadline, trio.current_time() + LEAVE_SECONDS)

    @property
    def _idle_timeout(self) -> float:
        return min(self.limits.idle_timeout, LEAVE_SECONDS) if self._is_leaving else self.limits.idle_timeout

    def _stop_reading(self) -> None:
        self._is_stopped = True
        self._reading.cancel()

    @property
    def closes(self) -> bool:
        """Whether the connection ends with the present exchange, whatever its client wants."""
        return self._is_leaving or self._half_close.has_begun or self._fast_path.served >= self._most_served

    @property
    def has_more(self) -> bool:
        """Whether bytes have come that are not read yet."""
        return bool(self._buffer or self._ahead)

    async def _serve(self) -> Http1Exchange | None:
        """Take requests until none follows. One that came in the moment in which no more were to be taken is returned,
        and has yet to be run. Raises ClientGone where the client has left between two requests."""
        while True:
            head = await self._head()
            if head is None:
                return None
            self._fast_path.served += 1
            if self._fast_path.served == self._most_served:
                self.on_limit("max_requests_per_connection")
            self._is_timing_head = False
            self._exchange = exchange = Http1Exchange(self, head)
            if self._is_stopped:
                exchange.closes = True
                return exchange
            await self._run(exchange)
            self._exchange = None
            del head  # it may be large, and the next one far
            if exchange.closes or self._is_gone:
                self._has_ended = True
                self._has_unread = self._has_unread or self.has_more
                return None
            del exchange

    async def _run(self, exchange: Http1Exchange) -> None:
        try:
            await self._app(exchange)
        except ClientGone:
            pass
        except Exception:
            logger.exception("%s %r failed", exchange.method, exchange.raw_path)
            if not exchange.has_started:
                exchange.closes = True
                await exchange.reply(error_reply(Internal("internal error")))
        if not exchange.is_complete:
            exchange.closes = True

    # Heads.

    async def _head(self) -> Head | None:
        """The next head; None where none follows, which has then been told."""
        searched = 0
        while True:
            if self._buffer:
                if self._buffer[0] in b"\r\n":  # a few clients end a body with a line end that is not part of it
                    self._buffer = self._buffer.lstrip(b"\r\n")
                found = END_OF_HEAD.search(self._buffer, max(0, searched - 2))
                if found:
                    return await self._take_head(found.end())
                searched = len(self._buffer)
                if searched > self.limits.max_header_size:
                    await self._refuse(HeadersTooLarge(self.limits.max_header_size))
                    return None
                if searched and not self._buffer[:1].isalpha():
                    await self._refuse(malformed("no request line of HTTP/1.0 or HTTP/1.1"))
                    return None
                if searched and not self._is_timing_head:
                    self._is_timing_head = True
                    self._seen = self._fast_path.served
                    self._deadline = trio.current_time() + self.limits.header_timeout
            if self._buffer or self._ahead or self._is_watched:
                self._buffer += await self.receive()
            elif not await self._has_begun():
                return None

    async def _has_begun(self) -> bool:
        """Rest until a request comes that takes this task; whether the connection goes on."""
        while not self._buffer:
            self._buffer = await self._fast_path.wait()
            if self._fast_path.has_failed:
                await self._end_failed()
                return False
            if self._fast_path.unfinished is not None:
                await self._finish(self._fast_path.unfinished)
                self._fast_path.unfinished = None
            if self._fast_path.is_cut:
                return True  # though no other may follow
            if self._fast_path.has_said_close or self._is_gone:
                self._has_ended = True
                self._has_unread = self._has_unread or self.has_more
                return False
            if not self._buffer and self._half_close.has_begun:
                self._is_gone = True
                raise ClientGone
        return True

    async def _end_failed(self) -> None:
        """A defect of ours, which is told where no answer has begun."""
        self._has_ended = True
        if not self._fast_path.has_begun_answer:
            await self._refuse(Internal("internal error"))

    async def _finish(self, unfinished: Unfinished) -> None:
        """Answer a request that has rested up to here."""
        if unfinished.parts:
            await self.send_parts(unfinished.parts)
        elif self._direct is not None:
            reply = await self._direct.encode(unfinished.request)
            closes = self._fast_path.has_said_close = self.closes
            head = response_head(reply.status, reply.headers, self.date, length=reply.length, closes=closes)
            await self.send_parts((head, reply.body, *reply.tail))

    async def _take_head(self, end: int) -> Head | None:
        data, self._buffer = self._buffer[:end], self._buffer[end:]
        if data == self._last_head and self._parsed is not None:
            return self._parsed  # a client's requests differ in their bodies, mostly
        if len(data) > self.limits.max_header_size:
            await self._refuse(HeadersTooLarge(self.limits.max_header_size))
            return None
        if data == HTTP2_PREFACE and self._may_upgrade:
            self._change = ChangeToHttp2(data + self._buffer)
            return None
        try:
            head = parse_head(data)
        except ServerError as error:
            await self._refuse(error)
            return None
        if self._may_upgrade and (settings := upgrade_settings(head)) is not None:
            await self._upgrade(head, settings)
            return None
        if is_worth_keeping(data):
            self._last_head, self._parsed = data, head
        return head

    # Bodies.

    async def read_body(self, head: Head, limit: BodyLimit, share: RequestShare, pause_seconds: float) -> Buffer:
        """As `Exchange.read_body`, called once for each request that may have a body."""
        size = head.content_length
        if not head.is_chunked and size <= len(self._buffer):
            share.take(size)
            here, self._buffer = self._buffer[:size], self._buffer[size:]
            return here
        self._has_unread = True
        if head.expects_continue and not self.has_more:
            await self.send(_CONTINUE)
        body = IncomingBody(self, limit, share, pause_seconds)
        first, self._buffer = self._buffer, b""
        data: Buffer
        if head.is_chunked:
            try:
                data, self._buffer = await body.read_chunked(first)
            except LineTooLong:
                raise HeadersTooLarge(self.limits.max_header_size) from None
        else:
            data = await body.read_sized(first, size)
        self._has_unread = False
        return data

    # What comes.

    async def receive(self) -> bytes:
        """Implements `BodySource`."""
        while self._is_watched:
            await self._arrived.wait()
        data, self._ahead = self._ahead, b""
        if not data:
            data = b"" if self._half_close.has_begun else await self.wire.receive(RECEIVE_SIZE)
            if not data:
                self._is_gone = True
                raise ClientGone
        return data

    async def receive_into(self, view: memoryview) -> int:
        """Implements `BodySource`."""
        size = await self.wire.receive_into(view)
        if not size:
            self._is_gone = True
            raise ClientGone
        return size

    async def _watch(self) -> None:
        """Have the wire in sight, when told to, until something comes: the next request is kept, and that the client
        has gone ends everything. One that has only ended its sending direction is probed from then on."""
        while True:
            await self._watching.wait()
            if self._exchange is None or self._has_unread:  # meanwhile, and the wire is read already
                continue
            if self.wire.is_lost:
                self._lose()
            elif self._half_close.has_begun:
                await self._probe(self._exchange)
            elif not (self._ahead or self._buffer):  # else there is enough for now
                self._is_watched = True
                self._ahead = await self.wire.receive(RECEIVE_SIZE)
                self._is_watched = False
                self._half_close.has_begun = not self._ahead
                self._arrived.wake()

    async def _probe(self, exchange: Http1Exchange) -> None:
        """Whoever has gone resets the connection, which is seen here or at the next look."""
        now, has_head = trio.current_time(), exchange.has_started
        probe = b""
        if not has_head:
            probe = self._half_close.probe(now)
        elif exchange.is_between_chunks and not self._is_sending:
            probe = self._half_close.chunk_probe(now)
        if not probe:
            return
        probing = self._probing = trio.Event()
        try:
            if await self.wire.send(probe, self.limits.send_timeout, self._note_deaf):
                self._half_close.note_sent(now, has_head=has_head)
            if self.wire.is_lost:
                self._lose()
        finally:
            self._probing = None
            probing.set()

    # Ends.

    async def _time_out(self) -> None:
        if self._is_timing_head:
            await self._refuse(HeaderTimeout(self.limits.header_timeout))
        elif not self._is_leaving:
            self.on_limit("idle_timeout")

    async def _refuse(self, error: ServerError) -> None:
        """Answer what is no request, and end the connection."""
        if isinstance(error, LimitError):
            self.on_limit(error.limit)
        reply = error_reply(error)
        self._has_unread = True
        head = response_head(reply.status, reply.headers, self.date, length=len(reply.body), closes=True)
        await self.send(head + reply.body)

    async def _upgrade(self, head: Head, settings: bytes) -> None:
        await self.send(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
        headers = [
            (b":method", head.method.encode()),
            (b":path", head.target),
            (b":authority", head.headers.get(b"host", b"")),
            (b":scheme", b"http"),
            *((name.lower(), value) for name, value in head.sent_headers if name.lower() not in _HOP_BY_HOP),
        ]
        self._change = ChangeToHttp2(self._buffer, settings, headers)

    async def _say_goodbye(self) -> None:
        """Let the client close first: closing on bytes that nobody has read would make the kernel reset the connection,
        and the client lose an answer that it has not read."""
        await self.wire.send_eof()
        while await self.wire.receive(RECEIVE_SIZE):
            pass

    # What leaves.

    def linger(self, seconds: float) -> None:
        """The client is still sending what nobody will read; give it that long."""
        self._has_unread = True
        self._linger = seconds

    async def send(self, data: Buffer) -> None:
        if self._half_close.has_begun:
            data = (await self._behind_probe((data,)))[0]
        self._is_sending = True
        if not self._is_gone and not await self.wire.send(data, self.limits.send_timeout, self._note_deaf):
            self._lose()  # part of a message may be out, and nothing can follow it
        self._is_sending = False

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        if self._half_close.has_begun:
            parts = await self._behind_probe(parts)
        self._is_sending = True
        if not self._is_gone and not await self.wire.send_parts(parts, self.limits.send_timeout, self._note_deaf):
            self._lose()
        self._is_sending = False

    async def _behind_probe(self, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        """What is still to be sent of the parts."""
        while self._probing is not None:
            await self._probing.wait()
        self._half_close.note_chunk()
        return (self._half_close.rest_of(bytes(parts[0])), *parts[1:]) if self._half_close.is_ahead else parts

    def _lose(self) -> None:
        """The client has left, or takes nothing any more: what runs for it is cancelled."""
        self._is_gone = self._has_ended = True
        if self._running is not None:
            self._running.cancel()

    def _note_deaf(self) -> None:
        self.on_limit("send_timeout")
