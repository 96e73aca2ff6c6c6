"""Sans-IO state machine of an HTTP/1 connection, server side: received bytes to events, responses to bytes. No I/O.

    bytes -> receive -> next_event -> the driver -> begin_response, frame, end_response -> bytes

Two drivers share one object: the connection's task (`connection.Http1`), and the inline fast path, which serves plain
requests by calls while that task is parked (`fast_path.FastPath`). The fast path assigns the states of a plain exchange
itself, IDLE, AWAITING, RESPONDING and IDLE, since it pays for each call. Source: RFC 9112.
"""

from __future__ import annotations

import math

from protocol.errors import ServerError
from protocol.http.errors import HeadersTooLarge
from protocol.http.head import Head, malformed
from protocol.http.http1.chunks import ChunkDecoder, LineTooLong
from protocol.http.http1.events import (
    CLIENT_GONE,
    END_OF_REQUEST,
    HALF_CLOSED,
    NEEDS_DATA,
    PAUSED,
    ChangeToHttp2,
    Content,
    Event,
    Refusal,
    Signal,
)
from protocol.http.http1.half_close import HalfClose
from protocol.http.http1.head import END_OF_HEAD, HTTP2_PREFACE, is_worth_keeping, parse_head, upgrade_settings
from protocol.http.http1.response import response_head
from protocol.http.http1.state import (
    AWAITING,
    BODY,
    CLOSED,
    CLOSING,
    ENDED,
    HEAD,
    HEAD_READ,
    IDLE,
    LAST_RESPONSE_BEGUN,
    LINGERED,
    LOST,
    PROTOCOL_SWITCHED,
    REFUSED,
    REFUSING,
    REQUEST_BEGUN,
    REQUEST_READ,
    RESPONDING,
    RESPONSE_BEGUN,
    RESPONSE_SENT,
    Move,
    after,
)
from protocol.http.reply import Headers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
SWITCHING_PROTOCOLS = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"

# A line of chunked framing, and all trailers of a body.
MAX_FRAMING_LINE = 16 * 1024

_HOP_BY_HOP = frozenset({b"host", b"connection", b"upgrade", b"http2-settings", b"transfer-encoding", b"keep-alive"})
# A response has not begun, or is not sent whole.
_IN_EXCHANGE = frozenset({BODY, AWAITING, RESPONDING, CLOSING, REFUSING})


class Http1Protocol:
    """The driver gives what has come, and asks for events until one of them says that more is needed; it reads no
    further than that, so what is buffered is bounded by a head, or a line of framing, and one read. It sends what it is
    given, in order. A move that is none raises IllegalMove.

    Attributes:
        state: where the present exchange is; assigned here and by the fast path alone.
        buffer: what has come and has not been taken.
        is_at_end: the client has ended its sending direction: no bytes follow those in the buffer.
        closes: the next response that begins says that it is the last one; set by a driver that drains the connection.
        served: requests so far; of at most `max_requests`.
        head: that of the present request, once it is read by `next_event`.
    """

    __slots__ = (
        "_chunks",
        "_half_close",
        "_is_chunked",
        "_kept",
        "_kept_data",
        "_left",
        "_max_header_size",
        "_may_upgrade",
        "_searched",
        "buffer",
        "closes",
        "head",
        "is_at_end",
        "max_requests",
        "served",
        "state",
    )

    def __init__(self, max_header_size: int, max_requests: int = 0, *, may_upgrade: bool = True) -> None:
        self.state = IDLE
        self.buffer = b""
        self.is_at_end = False
        self.closes = False
        self.served = 0
        self.max_requests: float = max_requests or math.inf
        self.head: Head | None = None
        self._max_header_size = max_header_size
        self._may_upgrade = may_upgrade
        self._half_close = HalfClose()
        self._searched = 0  # bytes of the buffer without the end of a head
        self._kept_data = b""  # a client's heads are mostly the same
        self._kept: Head | None = None
        self._left = 0  # of a body whose length is known
        self._chunks: ChunkDecoder | None = None  # of a body in chunks
        self._is_chunked = False  # the response

    def move(self, move: Move) -> None:
        self.state = after(self.state, move)

    # What comes.

    def receive(self, data: bytes) -> None:
        """Received bytes; none are the end of the client's input."""
        if data:
            self.buffer += data
        else:
            self.is_at_end = True

    def next_event(self) -> Event:
        """The next event. None follows a `Refusal`."""
        if self.state is IDLE or self.state is HEAD:
            return self._next_head()
        if self.state is BODY:
            return self._next_content() if self._chunks is None else self._next_chunks(self._chunks)
        if self.buffer:
            return PAUSED
        return HALF_CLOSED if self.is_at_end else NEEDS_DATA

    @property
    def is_half_closed(self) -> bool:
        """Whether the current request is the client's last one."""
        return self.is_at_end and not self.buffer

    @property
    def content_left(self) -> int | None:
        """Bytes of the body that are still to be read; None where they come in chunks."""
        return self._left if self._chunks is None else None

    @property
    def needs_continue(self) -> bool:
        """Whether the client waits for `CONTINUE` before it sends the body."""
        return self.state is BODY and self.head is not None and self.head.expects_continue and not self.buffer

    def note_content(self, size: int) -> None:
        """So many bytes of a body of known length were read past the buffer, which is empty."""
        self._left -= size

    def _next_head(self) -> Event:
        if self.buffer[:1] in (b"\r", b"\n"):  # a few clients end a body with a line end that is not part of it
            self.buffer = self.buffer.lstrip(b"\r\n")
        if not self.buffer:
            return self._wait()
        if self.state is IDLE:
            self.move(REQUEST_BEGUN)
        if not self.buffer[:1].isalpha():
            return Refusal(malformed("no request line of HTTP/1.0 or HTTP/1.1"))
        found = END_OF_HEAD.search(self.buffer, max(0, self._searched - 2))
        size = found.end() if found else len(self.buffer)
        if size > self._max_header_size:
            return Refusal(HeadersTooLarge(self._max_header_size))
        if not found:
            self._searched = size
            return self._wait()
        self._searched = 0
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return self._take_head(data)

    def _take_head(self, data: bytes) -> Event:
        head = self._kept
        if head is None or data != self._kept_data:
            if data == HTTP2_PREFACE and self._may_upgrade:
                self.move(PROTOCOL_SWITCHED)
                return ChangeToHttp2(data + self.buffer)
            try:
                head = parse_head(data)
            except ServerError as error:
                return Refusal(error)
            if self._may_upgrade and (settings := upgrade_settings(head)) is not None:
                self.move(PROTOCOL_SWITCHED)
                return ChangeToHttp2(self.buffer, settings, _upgraded_headers(head))
            if is_worth_keeping(data):
                self._kept_data, self._kept = data, head
        self.served += 1
        self.head = head
        self._left = head.content_length
        self._chunks = ChunkDecoder(MAX_FRAMING_LINE) if head.is_chunked else None
        self.move(HEAD_READ if head.has_body else REQUEST_READ)
        return head

    def _next_content(self) -> Event:
        if not self._left:
            self.move(REQUEST_READ)
            return END_OF_REQUEST
        if not self.buffer:
            return self._wait()
        data, self.buffer = self.buffer[: self._left], self.buffer[self._left :]
        self._left -= len(data)
        return Content(data)

    def _next_chunks(self, decoder: ChunkDecoder) -> Event:
        if not decoder.is_complete:
            data, self.buffer = self.buffer, b""
            try:
                if data:
                    decoder.feed(data)
            except LineTooLong:
                return Refusal(HeadersTooLarge(self._max_header_size))
            except ServerError as error:
                return Refusal(error)
            if decoder.is_complete:
                self.buffer = decoder.rest
            if decoder.parts:
                parts, decoder.parts = decoder.parts, []
                return Content(parts[0] if len(parts) == 1 else b"".join(parts))
            if not decoder.is_complete:
                return self._wait()
        self._chunks = None
        self.move(REQUEST_READ)
        return END_OF_REQUEST

    def _wait(self) -> Signal:
        """Of a request that is not whole."""
        if not self.is_at_end:
            return NEEDS_DATA
        self.move(LOST)
        return CLIENT_GONE

    # What leaves.

    @property
    def has_begun_response(self) -> bool:
        """Whether it is too late for another response in the current exchange."""
        return self.state is not BODY and self.state is not AWAITING

    def begin_response(self, status: int, headers: Headers, last: bytes, length: int | None = None) -> bytes:
        """The head of the response to the present request; without a `length` its body goes through `frame`.

        Behind it the connection stays only if the request is read whole, both sides want that, and a client that knows
        no chunks need not take the end of the connection for the end of the body.
        """
        head = self.head
        is_http_1_0 = head is not None and head.is_http_1_0
        closes = (
            self.closes
            or self.state is BODY
            or self.is_half_closed
            or self.served >= self.max_requests
            or (head is not None and not head.keeps_alive)
            or (length is None and is_http_1_0)
        )
        self.move(LAST_RESPONSE_BEGUN if closes else RESPONSE_BEGUN)
        self._is_chunked = length is None and not is_http_1_0
        data = response_head(
            status,
            headers,
            last,
            length=length,
            closes=closes,
            is_chunked=self._is_chunked,
            is_http_1_0=is_http_1_0,
        )
        return self._half_close.rest_of(data)

    def begin_refusal(self, status: int, headers: Headers, last: bytes, length: int) -> bytes:
        """The head of the last response, to what is no request, or to none."""
        is_request = self.state is BODY or self.state is AWAITING
        self.move(LAST_RESPONSE_BEGUN if is_request else REFUSED)
        self._is_chunked = False
        return self._half_close.rest_of(response_head(status, headers, last, length=length, closes=True))

    def frame(self, data: bytes) -> bytes:
        """A piece of a response's body whose length was not told."""
        self._half_close.note_chunk()
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked and data else data

    def end_of_body(self) -> bytes:
        """What ends a body whose length was not told."""
        return b"0\r\n\r\n" if self._is_chunked else b""

    def end_response(self) -> None:
        """The whole response has been sent."""
        expects_more = self.head is not None and self.head.keeps_alive and not self.is_at_end
        self.head = None  # it may be large, and the next one far
        self._is_chunked = False
        if self.state is RESPONDING:
            self.move(RESPONSE_SENT)
        elif self.state is CLOSING and expects_more:
            self.move(LINGERED)  # the client may have sent a further request that was not read yet
        else:
            self._end()

    def end_exchange(self) -> None:
        """Nothing more is sent in the present exchange. Where its response is not whole the connection ends: that is
        all that can still tell the client."""
        self.head = None
        if self.state in _IN_EXCHANGE:
            self._end()

    def probe(self, now: float) -> bytes:
        """What may be sent now to a client that is half-closed, to learn whether it still reads; nothing while it is
        too early, or where every byte would mean something."""
        if self.state is AWAITING:
            return self._half_close.probe(now)
        return self._half_close.chunk_probe(now) if self._is_between_chunks else b""

    def note_probe(self, now: float) -> None:
        """The last probe was sent."""
        self._half_close.note_sent(now, has_head=self._is_between_chunks)

    @property
    def _is_between_chunks(self) -> bool:
        return self._is_chunked and (self.state is RESPONDING or self.state is CLOSING)

    # Ends.

    def end(self) -> None:
        """The connection ends in good order."""
        self.move(ENDED)

    def lose(self) -> None:
        """The client is lost: it has left, or reads nothing any more."""
        if self.state is not CLOSED:
            self.move(LOST)

    def _end(self) -> None:
        is_whole = self.state is not BODY and self.state is not REFUSING
        self.move(ENDED if is_whole and not self.buffer else LINGERED)


def _upgraded_headers(head: Head) -> list[tuple[bytes, bytes]]:
    """The headers of the request as HTTP/2 has them."""
    return [
        (b":method", head.method.encode()),
        (b":path", head.target),
        (b":authority", head.headers.get(b"host", b"")),
        (b":scheme", b"http"),
        *((name.lower(), value) for name, value in head.sent_headers if name.lower() not in _HOP_BY_HOP),
    ]
