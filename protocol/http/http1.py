"""HTTP/1.1 on one connection: hypercorn's protocol over h11, exact where a server must not guess.

    bytes -> h11 -> [http1] -> hypercorn's HTTPStream -> the application, and back

Beside what h11 refuses (unknown transfer codings, wrong lengths, names and values that are none), this refuses what it
lets pass and what two servers in a row may read differently: `Content-Length` beside `Transfer-Encoding`, and transfer
codings in HTTP/1.0 (RFC 9112, 6.1). Each refusal is JSON, as all errors of this edge are.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import h11
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Event, Request, Response
from hypercorn.protocol.h11 import STREAM_ID, H2ProtocolAssumedError, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ConnectionState,
    H11SendableEvent,
    Scope,
)

from protocol.errors import InvalidArgument, ServerError, Unsupported
from protocol.http.errors import HeadersTooLarge, HeaderTimeout, LimitError, error_reply
from protocol.http.settings import ConnectionLimits
from protocol.http.transport import SENT_HEADERS

# Triton's bound on chunks, for bodies cut so small that framing costs more than content.
MAX_CHUNKS = 65536

_CLOSE = (b"connection", b"close")
# What h11 has taken for a request, and h2 wants to see (RFC 9113, 3.4).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
_SETTING_SIZE = 6  # bytes of one entry in a SETTINGS frame
# What is larger is not copied to be joined with its head.
_JOINED_SIZE = 64 * 1024


class Http1(H11Protocol):
    """Made and driven by `connection.Connection`, which sets `limits` and `on_limit`."""

    connection: h11.Connection  # and never hypercorn's WebSocket in its place
    limits: ConnectionLimits
    on_limit: Callable[[str], None]
    _is_draining = False
    _is_head = False
    _chunks = 0
    _head = b""  # of a response, not sent yet
    _has_refused = False

    @property
    def idle(self) -> bool:
        return self.stream is None

    @property
    def has_begun(self) -> bool:
        """Whether a part of a request's head is there."""
        return bool(self.connection.trailing_data[0])

    @property
    def may_get_more(self) -> bool:
        """Whether the client may still be sending what nobody will read."""
        return self.has_begun or self.connection.their_state in (h11.SEND_BODY, h11.ERROR)

    async def drain(self) -> None:
        """Take no request after the present one."""
        self._is_draining = True
        if self.idle:
            await self.send(Closed())

    async def time_out(self) -> None:
        """The head of a request took too long."""
        await self._refuse(HeaderTimeout(self.limits.header_timeout))

    # From the client.

    async def _handle_events(self) -> None:
        while True:
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                await self._refuse(self._error(error))
                return
            if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return
            if event is h11.PAUSED:  # a request behind the one that is being answered
                await self.can_read.clear()
                await self.can_read.wait()
            elif isinstance(event, h11.Request):
                if not await self._open(event):
                    return
            elif self.stream is None:
                return  # answered, and the connection ends: nobody wants the rest
            elif isinstance(event, h11.Data):
                self._chunks += event.chunk_start
                if self._chunks > MAX_CHUNKS:
                    await self._refuse(_too_many_chunks())
                    return
                await self.stream.handle(Body(stream_id=STREAM_ID, data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self.stream.handle(EndBody(stream_id=STREAM_ID))

    async def _open(self, request: h11.Request) -> bool:
        """Start the application on a request, and return whether that was done.

        Raises:
            H2ProtocolAssumedError, H2CProtocolRequiredError: the client changes to HTTP/2.
        """
        headers = list(request.headers)
        fields = dict(headers)
        self._is_head = request.method == b"HEAD"
        if _head_size(request) > self.limits.max_header_size:  # it has come at once: h11 looks only at what is cut off
            await self._refuse(HeadersTooLarge(self.limits.max_header_size))
            return False
        if b"transfer-encoding" in fields and (b"content-length" in fields or request.http_version < b"1.1"):
            await self._refuse(_ambiguous_length(fields))
            return False
        if (request.method, request.target, request.http_version) == (b"PRI", b"*", b"2.0"):
            raise H2ProtocolAssumedError(_PREFACE + self.connection.trailing_data[0])
        if b"upgrade" in fields and not self.ssl and _asks_for_http2(fields):
            await self._check_protocol(request)
        self._chunks = 0
        self.keep_alive_requests += 1
        if self.keep_alive_requests == self.config.keep_alive_max_requests:
            self.on_limit("max_requests_per_connection")
        state: dict[str, Any] = {SENT_HEADERS: request.headers.raw_items()} if self.config.h11_pass_raw_headers else {}
        self.stream = HTTPStream(
            self._app_that_continues if self.connection.they_are_waiting_for_100_continue else self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.send(Updated(idle=False))
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=headers,
                http_version=request.http_version.decode(),
                method=request.method.decode(),
                raw_path=request.target,
                state=ConnectionState(state),
            )
        )
        return True

    async def _app_that_continues(
        self,
        scope: Scope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        sync_spawn: Callable[..., Any],
        call_soon: Callable[..., Any],
    ) -> None:
        """The application, for a client that expects `100 Continue`: it is told when its body is wanted, and not where
        its request is refused by the head alone."""

        async def continue_and_receive() -> ASGIReceiveEvent:
            if self.connection.they_are_waiting_for_100_continue:
                await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))
            return await receive()

        await self.app(scope, continue_and_receive, send, sync_spawn, call_soon)

    def _error(self, error: h11.RemoteProtocolError) -> ServerError:
        match error.error_status_hint:
            case 431:
                return HeadersTooLarge(self.limits.max_header_size)
            case 501:
                return Unsupported(f"{error}; send the body chunked, or with its length")
            case _:
                reason, _, _ = str(error).partition(": bytearray(")  # h11 goes on with the bytes
                return InvalidArgument(f"malformed HTTP request: {reason}")

    # To the client.

    async def stream_send(self, event: Event) -> None:
        if self._is_draining and isinstance(event, Response) and _CLOSE not in event.headers:
            event = Response(event.stream_id, [*event.headers, _CLOSE], event.status_code)
        await super().stream_send(event)

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        """The head of a response waits for what follows it, so that a small one leaves in one write."""
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self._has_refused:  # while the application was at work
                return
            raise
        if isinstance(event, h11.Response):
            self._head = data
            return
        head, self._head = self._head, b""
        if len(data) > _JOINED_SIZE:
            await self.send(RawData(head))
            head = b""
        if head or data:
            await self.send(RawData(head + data))

    async def _refuse(self, error: ServerError) -> None:
        """Answer what is no request, or no longer one, and end the connection. A response that has begun is cut off."""
        if isinstance(error, LimitError):
            self.on_limit(error.limit)
        self._has_refused = True
        state = self.connection.our_state
        if state in (h11.IDLE, h11.SEND_RESPONSE):
            reply = error_reply(error)
            length = (b"content-length", b"%d" % len(reply.body))
            headers = [*chain(reply.headers, (length, _CLOSE), self.config.response_headers("h11"))]
            await self._send_h11_event(h11.Response(status_code=reply.status, headers=headers))
            if state is h11.IDLE or not self._is_head:
                await self._send_h11_event(h11.Data(data=reply.body))
            await self._send_h11_event(h11.EndOfMessage())
        await self.send(Closed())


def _head_size(request: h11.Request) -> int:
    """Bytes of its line and its headers, with the separators that they have at least."""
    line = len(request.method) + len(request.target) + len("  HTTP/1.1\r\n")
    return line + sum(len(name) + len(value) + len(":\r\n") for name, value in request.headers)


def _asks_for_http2(fields: Mapping[bytes, bytes]) -> bool:
    """Whether an upgrade to HTTP/2 is asked for as it must be (RFC 7540, 3.2); all others are ignored."""
    if fields[b"upgrade"].lower() != b"h2c":
        return False
    options = {option.strip() for option in fields.get(b"connection", b"").lower().split(b",")}
    if not {b"upgrade", b"http2-settings"} <= options:
        return False
    text = fields.get(b"http2-settings", b"")
    try:
        settings = base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        return False
    return len(settings) % _SETTING_SIZE == 0


def _ambiguous_length(fields: Mapping[bytes, bytes]) -> ServerError:
    is_double = b"content-length" in fields
    reason = "both 'Content-Length' and 'Transfer-Encoding'" if is_double else "'Transfer-Encoding' in HTTP/1.0"
    return InvalidArgument(f"malformed HTTP request: {reason}, so that its length is not certain")


def _too_many_chunks() -> ServerError:
    return InvalidArgument(
        f"Chunked request body exceeds maximum of {MAX_CHUNKS} non-empty chunks. Send fewer or larger HTTP chunks."
    )
