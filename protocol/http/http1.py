"""HTTP/1 on one connection: one task reads, one answers, one exchange at a time.

    wire -> [reader] -> head and body -> [application] -> reply -> wire

The reader has the next bytes of the connection in sight while a request runs, so that a client that leaves cancels it.
A request behind the present one waits in the reader's buffer, which takes no more then.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from dataclasses import dataclass

import trio

from protocol.errors import Internal, ServerError
from protocol.http.date import DateHeader
from protocol.http.errors import HeadersTooLarge, HeaderTimeout, LimitError, error_reply
from protocol.http.exchange import App
from protocol.http.http1_body import IncomingBody
from protocol.http.http1_chunks import ChunkDecoder, LineTooLong
from protocol.http.http1_exchange import Http1Exchange, response_head
from protocol.http.http1_head import END_OF_HEAD, HTTP2_PREFACE, Head, malformed, parse_head
from protocol.http.settings import GOODBYE_SECONDS, ConnectionLimits, OnLimit
from protocol.http.wakeup import Wakeup
from protocol.http.wire import Wire
from protocol.messages import Buffer

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 64 * 1024
# A line of chunked framing, and all trailers of a body.
MAX_FRAMING_LINE = 16 * 1024

# The most that is read at a time of a body whose size is known.
_PIECE = 1024 * 1024

_HOP_BY_HOP = frozenset({b"host", b"connection", b"upgrade", b"http2-settings", b"transfer-encoding", b"keep-alive"})


@dataclass(frozen=True, slots=True)
class ChangeToHttp2:
    """The client wants HTTP/2 from here on: `rest` has come already. After an upgrade there are its settings and the
    headers of its request."""

    rest: bytes
    settings: bytes | None = None
    headers: list[tuple[bytes, bytes]] | None = None


class _Ended(Exception):
    """The reader has nothing more to do."""


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
        may_upgrade: bool = True,
    ) -> None:
        self._app = app
        self.wire = wire
        self.limits = limits
        self.on_limit = on_limit
        self.date = date
        self._may_upgrade = may_upgrade
        self._buffer = b""
        self._last_head = b""
        self._parsed: Head | None = None
        self._exchange: Http1Exchange | None = None
        self._begun = Wakeup()
        self._over = Wakeup()
        self._reading = trio.CancelScope()
        self._deadline = math.inf  # of the wait for a request, or for its head
        self._is_timing_head = False
        self._has_ended = False  # no request comes after the present one
        self._is_gone = False  # the client has left, or takes nothing any more
        self._is_draining = False
        self._has_unread = False  # the client may still be sending what nobody will read
        self._linger = GOODBYE_SECONDS
        self._left = limits.max_requests_per_connection or math.inf
        self._change: ChangeToHttp2 | None = None

    async def run(self) -> ChangeToHttp2 | None:
        """Serve until either side ends the connection, or HTTP/2 begins. Cancelling ends it at once, with what runs."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer)
            self._note_idle()
            with self._reading, suppress(_Ended):
                await self._read()
            if self._is_gone:
                nursery.cancel_scope.cancel()
            elif self._reading.cancelled_caught and not self._has_ended:
                await self._time_out()
            self._has_ended = True
            self._begun.wake()
        if self._change is None and not self._is_gone and self._has_unread:
            with trio.move_on_after(self._linger):
                await self._say_goodbye()
        return self._change

    def check_time(self, now: float) -> None:
        """Called every now and then: a scope with a deadline of its own for each wait would cost more."""
        if now >= self._deadline:
            self._reading.cancel()

    async def drain(self) -> None:
        """Finish what is in flight, take no more, and let `run` return."""
        self._is_draining = True
        if self._exchange is None:
            self.end()

    def end(self) -> None:
        """Take no request after the present one."""
        self._has_ended = True
        self._reading.cancel()

    @property
    def closes(self) -> bool:
        """Whether the connection ends with the present exchange, whatever its client wants."""
        return self._is_draining or self._left <= 0

    @property
    def has_more(self) -> bool:
        """Whether bytes have come that are not read yet."""
        return bool(self._buffer)

    # The reader.

    async def _read(self) -> None:
        while True:
            head = await self._head()
            if head is None:
                return
            self._left -= 1
            if self._left == 0:
                self.on_limit("max_requests_per_connection")
            self._deadline = math.inf
            self._is_timing_head = False
            body = self._body(head)
            self._exchange = exchange = Http1Exchange(self, head, body)
            self._begun.wake()
            if body.size or head.is_chunked:
                await self._fill(head, body)
            await self._watch(exchange)

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
                    self._deadline = min(self._deadline, trio.current_time() + self.limits.header_timeout)
            self._buffer += await self._more()

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
        if self._may_upgrade and (settings := head.http2_settings) is not None:
            await self._upgrade(head, settings)
            return None
        self._last_head, self._parsed = data, head
        return head

    def _body(self, head: Head) -> IncomingBody:
        size = head.content_length
        if head.is_chunked or size > len(self._buffer):
            return IncomingBody(size, is_complete=False)
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return IncomingBody(0, data, is_complete=True)

    async def _fill(self, head: Head, body: IncomingBody) -> None:
        """Read a body that is not there yet; what goes wrong with it the application hears."""
        self._has_unread = True
        await body.wait_wanted()
        whole = await (self._fill_chunked(body) if head.is_chunked else self._fill_sized(body))
        if not whole:
            await self._wait_over()
            raise _Ended
        self._has_unread = False

    async def _fill_sized(self, body: IncomingBody) -> bool:
        view = body.buffer()
        filled = len(self._buffer)
        view[:filled] = self._buffer
        self._buffer = b""
        if not body.count(filled):
            return False
        while filled < body.size:
            size = await self.wire.receive_into(view[filled : filled + _PIECE])
            if not size:
                self._leave()
            filled += size
            if not body.count(size):
                return False
        body.complete(view)
        return True

    async def _fill_chunked(self, body: IncomingBody) -> bool:
        decoder = ChunkDecoder(MAX_FRAMING_LINE)
        data, self._buffer = self._buffer, b""
        try:
            while True:
                if data and not body.count(decoder.feed(data)):
                    return False
                if decoder.is_complete:
                    self._buffer = decoder.rest
                    body.complete(decoder.parts[0] if len(decoder.parts) == 1 else b"".join(decoder.parts))
                    return True
                data = await self._more()
        except ServerError as error:
            body.fail(error)
        except LineTooLong:
            body.fail(HeadersTooLarge(self.limits.max_header_size))
        return False

    async def _watch(self, exchange: Http1Exchange) -> None:
        """Until the exchange is over: a client that leaves is noticed, one that sends more fills the buffer once."""
        if not self._buffer and self._exchange is exchange:
            self._buffer = await self._more()
        if self._exchange is exchange:
            await self._wait_over()

    async def _wait_over(self) -> None:
        while self._exchange is not None:
            await self._over.wait()

    async def _more(self) -> bytes:
        data = await self.wire.receive(RECEIVE_SIZE)
        if not data:
            self._leave()
        return data

    def _leave(self) -> None:
        self._is_gone = True
        raise _Ended

    def _note_idle(self) -> None:
        self._is_timing_head = False
        self._deadline = trio.current_time() + self.limits.idle_timeout

    async def _time_out(self) -> None:
        if self._is_timing_head:
            await self._refuse(HeaderTimeout(self.limits.header_timeout))
        else:
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

    # The answering task.

    async def _answer(self) -> None:
        while True:
            while (exchange := self._exchange) is None:
                if self._has_ended:
                    return
                await self._begun.wait()
            await self._run(exchange)
            self._exchange = None
            if exchange.closes or self.closes or self._is_gone:
                self._has_unread = self._has_unread or bool(self._buffer)
                self.end()
                return
            self._note_idle()
            self._over.wake()

    async def _run(self, exchange: Http1Exchange) -> None:
        try:
            await self._app(exchange)
        except Exception:
            logger.exception("%s %r failed", exchange.method, exchange.raw_path)
            if not exchange.has_started:
                exchange.closes = True
                await exchange.reply(error_reply(Internal("internal error")))
        if not exchange.is_complete:
            exchange.closes = True

    # Both.

    def linger(self, seconds: float) -> None:
        """The client is still sending what nobody will read; give it that long."""
        self._has_unread = True
        self._linger = seconds

    async def send(self, data: Buffer) -> None:
        if not self._is_gone and not await self.wire.send(data, self.limits.send_timeout, self._note_deaf):
            self._is_gone = True  # part of a message may be out, and nothing can follow it
            self.end()

    def _note_deaf(self) -> None:
        self.on_limit("send_timeout")
