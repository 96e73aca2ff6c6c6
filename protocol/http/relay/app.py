"""The application of a relaying edge: each request is answered by the core's edge, as it comes and as it goes.

The core has a connection for each request that it is sent, so it is sent none that its client may still stall: a short
body is read first, unless the core has no route for the request, and a response whose length is told is read whole
before it is sent on, where there is memory. Longer ones are streamed, and what a client sends or reads slowly is waited
for here and in the core alike. Cancelled, for its client has gone, a request closes its connection to the core, which
cancels it there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import trio

from protocol.access.categories import Category
from protocol.errors import ServerError, Unavailable
from protocol.http.body import BodyLimit
from protocol.http.errors import LimitError, error_reply
from protocol.http.exchange import BodyStream, ClientGone, Exchange
from protocol.http.relay.request import request_head
from protocol.http.relay.response import NoResponse, ResponseHead
from protocol.http.relay.upstream import Lease, Purpose, Upstream, Upstreams
from protocol.http.reply import Reply
from protocol.http.route_table import Endpoint, RouteTable
from protocol.limits.request_memory import LIMIT_NAME, RequestMemory, RequestShare
from protocol.messages import Buffer

logger = logging.getLogger(__name__)

_NO_LENGTH = -1
# The core has a limit on pauses too, and says so in words that suit the call; this one is for when it does not.
_LATER_SECONDS = 5.0
# Of a body, read before the core hears of the request.
_AT_ONCE = 256 * 1024
# And waited for so long: its client may wait for a refusal, which only the core knows of.
_FIRST_SECONDS = 0.5
# Where less is left bodies are not read first: so much may come at a time.
_LEAST_MEMORY = 2 << 20


class HeadReply(Reply):
    """The reply to a HEAD: `declared` is how long the content would be."""

    declared: int = 0

    @property
    def length(self) -> int:
        return self.declared


@dataclass(frozen=True, slots=True)
class RelayApp:
    """`memory` counts responses that are read whole; `on_limit` is told of limits that refuse something. `body_timeout`
    and `linger` are as in `HttpSettings`; `routes` are those of the core's edge. `end_unheard` ends requests that the
    core has not heard of, as `HttpApp.end_unread` does; without it they are refused, and no log tells of them."""

    upstreams: Upstreams
    memory: RequestMemory
    on_limit: Callable[[str], None]
    body_timeout: float
    linger: float
    routes: RouteTable
    end_unheard: Callable[[Exchange, ServerError | None, int], Awaitable[None]] | None = None

    async def __call__(self, exchange: Exchange) -> None:
        arrival_ns = time.monotonic_ns()
        lease = Lease(self.upstreams, exchange.peer)
        try:
            with lease:
                await self._relay(exchange, lease)
        except ClientGone:
            if self.end_unheard is not None and not lease.was_taken:
                await self.end_unheard(exchange, None, arrival_ns)
        except NoResponse as error:
            logger.debug("a request was not answered by the core: %s", error)
            if not exchange.has_started:  # else the client sees that the response was cut off
                await self._refuse(exchange, _not_answered())
        except ServerError as error:
            if self.end_unheard is not None and not lease.was_taken:
                await self.end_unheard(exchange, error, arrival_ns)
            elif not exchange.has_started:
                await self._refuse(exchange, error)

    async def reply_to(self, exchange: Exchange, body: Buffer) -> Reply | None:
        """The core's reply to a request whose body was read here, and decoded; None where it was sent as it came, which
        is so if its length is not told, or there is no memory for it.

        Raises:
            ServerError: there is none.
            ClientGone: the client has left.
        """
        try:
            with Lease(self.upstreams, exchange.peer) as lease:
                upstream = await lease.take(exchange.method)
                await upstream.send(
                    (request_head(exchange, b"content-length: %d\r\n" % len(body), is_decoded=True), body)
                )
                head = await _response_of(upstream)
                if self._is_streamed(exchange, head):
                    await self._stream(exchange, upstream, head)
                    return None
                with RequestShare(self.memory, partial(self.on_limit, LIMIT_NAME)) as share:
                    share.take(head.length or 0)
                    return await self._whole_reply(exchange, upstream, head)
        except NoResponse as error:
            logger.debug("a request was not answered by the core: %s", error)
            if exchange.has_started:  # the client sees that the response was cut off
                return None
            raise _not_answered() from None

    async def _refuse(self, exchange: Exchange, error: ServerError) -> None:
        if isinstance(error, LimitError):
            self.on_limit(error.limit)
        await exchange.reply_early(error_reply(error), linger=self.linger)

    def _endpoint(self, exchange: Exchange) -> Endpoint | None:
        """None where the core's edge refuses the request by its head."""
        try:
            endpoint, _ = self.routes.find(exchange.raw_path)
            endpoint.route(exchange.method)
        except ServerError:
            return None
        return endpoint

    async def _relay(self, exchange: Exchange, lease: Lease) -> None:
        endpoint = self._endpoint(exchange)
        if not exchange.may_have_body:
            is_health = endpoint is not None and endpoint.category is Category.HEALTH
            upstream = await lease.take(exchange.method, Purpose.HEALTH if is_health else Purpose.ANSWER)
            await upstream.send((request_head(exchange, b"", expects_continue=False),))
            await self._answer(exchange, lease, upstream, await _response_of(upstream))
            return
        with RequestShare(self.memory) as share:
            upstream, response, is_whole = await self._send_with_body(
                exchange, lease, share, is_short_first=endpoint is not None
            )
        if is_whole:
            await self._answer(exchange, lease, upstream, response)
        else:  # it refuses the rest
            reply = await self._whole_reply(exchange, upstream, response)
            lease.end()
            await exchange.reply_early(reply, linger=self.linger)

    # The request.

    async def _send_with_body(
        self, exchange: Exchange, lease: Lease, share: RequestShare, *, is_short_first: bool
    ) -> tuple[Upstream, ResponseHead, bool]:
        """The connection, the response's head, and whether the request was sent whole before that came.
        `is_short_first`: a short body is read before the core hears of the request."""
        body = exchange.stream_body(BodyLimit(1 << 63, _never), pause_seconds=self.body_timeout + _LATER_SECONDS)
        length = int(exchange.headers.get(b"content-length", b"%d" % _NO_LENGTH))
        is_first = is_short_first and length <= _AT_ONCE
        # The core may refuse a body before it is sent.
        expects_continue = not is_first and exchange.headers.get(b"expect", b"").lower() == b"100-continue"
        here: list[Buffer] = []
        has_ended = False
        if is_short_first and not expects_continue:
            has_ended = await self._read_here(body, here, share)
        if has_ended and length == _NO_LENGTH:
            length = body.received
        framing = b"transfer-encoding: chunked\r\n" if length == _NO_LENGTH else b"content-length: %d\r\n" % length
        if not length:
            framing = b""
        head = request_head(exchange, framing, expects_continue=expects_continue)
        if has_ended:
            _check_length(length, body)
        is_upload = is_short_first and not has_ended
        upstream = await lease.take(exchange.method, Purpose.UPLOAD if is_upload else Purpose.ANSWER)
        if expects_continue:
            await upstream.send((head,))
            if (response := await upstream.response()) is not None:
                return upstream, response, False
        elif has_ended:
            await upstream.send((head, *here))
            return upstream, await _response_of(upstream), True
        else:
            await upstream.send((head, *_framed(here, length)))
        here.clear()
        share.end()
        return upstream, *await _Pump(body, upstream, length, lease.note_sent).run()

    async def _read_here(self, body: BodyStream, parts: list[Buffer], share: RequestShare) -> bool:
        """What comes of a body, up to a size, as far as there is memory. Whether that is all."""
        with trio.move_on_after(_FIRST_SECONDS):
            while body.received < _AT_ONCE and self.memory.left > _LEAST_MEMORY:
                data = await body.receive()
                if not data:
                    return True
                share.take(len(data))
                parts.append(data)
        return False

    # The response.

    async def _answer(self, exchange: Exchange, lease: Lease, upstream: Upstream, head: ResponseHead) -> None:
        if self._is_streamed(exchange, head):
            await self._stream(exchange, upstream, head)
            return
        is_bodiless = exchange.method == "HEAD" or head.status in (204, 304)
        with RequestShare(self.memory, partial(self.on_limit, LIMIT_NAME)) as share:
            share.take(0 if is_bodiless else head.length or 0)
            reply = await self._whole_reply(exchange, upstream, head)
            assert upstream.is_reusable or head.closes
            lease.end()
            await exchange.reply(reply)

    def _is_streamed(self, exchange: Exchange, head: ResponseHead) -> bool:
        """Whether a response goes to the client as it comes."""
        is_bodiless = exchange.method == "HEAD" or head.status in (204, 304)
        return not is_bodiless and (head.length is None or head.length > self.memory.left)

    async def _whole_reply(self, exchange: Exchange, upstream: Upstream, head: ResponseHead) -> Reply:
        if exchange.method == "HEAD" or head.status in (204, 304):
            return HeadReply(head.status, head.headers, request_id=head.request_id, declared=head.length or 0)
        if head.length is None:
            parts: list[bytes] = []
            while piece := await upstream.next_piece():
                parts.append(piece)
            return Reply(head.status, head.headers, b"".join(parts), request_id=head.request_id)
        return Reply(head.status, head.headers, await upstream.whole(), request_id=head.request_id)

    async def _stream(self, exchange: Exchange, upstream: Upstream, head: ResponseHead) -> None:
        headers = (*head.headers, (b"x-request-id", head.request_id)) if head.request_id else head.headers
        await exchange.start(head.status, headers)
        while piece := await upstream.next_piece():
            await exchange.send(piece)
        await exchange.end()


class _Pump:
    """Sends the rest of a body while the response is awaited, which may come before its end; `on_sent` is called at
    that."""

    def __init__(self, body: BodyStream, upstream: Upstream, length: int, on_sent: Callable[[], None]) -> None:
        self._on_sent = on_sent
        self._body = body
        self._upstream = upstream
        self._length = length
        self._is_done = False
        self._failure: Exception | None = None

    async def run(self) -> tuple[ResponseHead, bool]:
        """The response's head, and whether all was sent before it came. Raises what reading the body raises."""
        response: ResponseHead | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, nursery.cancel_scope)
            try:
                while response is None:
                    response = await self._upstream.response()
            except NoResponse as error:
                self._failure = error
            nursery.cancel_scope.cancel()
        if response is not None:
            return response, self._is_done
        assert self._failure is not None
        raise self._failure

    async def _send(self, scope: trio.CancelScope) -> None:
        body, upstream, length = self._body, self._upstream, self._length
        try:
            while data := await body.receive():
                if not await upstream.send(_framed((data,), length)):
                    return  # it has answered, or is gone, which the other task sees
            _check_length(length, body)
            self._is_done = length != _NO_LENGTH or await upstream.send((b"0\r\n\r\n",))
            self._on_sent()
        except (ServerError, ClientGone) as error:
            self._failure = error
            scope.cancel()


async def _response_of(upstream: Upstream) -> ResponseHead:
    """Of a request that was sent whole, whatever the core says before that."""
    while (response := await upstream.response()) is None:
        pass
    return response


def _framed(parts: list[Buffer] | tuple[Buffer, ...], length: int) -> list[Buffer]:
    if length != _NO_LENGTH or not parts:
        return [*parts]
    return [b"%x\r\n" % sum(map(len, parts)), *parts, b"\r\n"]


def _check_length(length: int, body: BodyStream) -> None:
    """The core would wait for what its client does not send."""
    if length not in (_NO_LENGTH, body.received):
        raise ClientGone


def _not_answered() -> Unavailable:
    return Unavailable("the server has not answered: the request was cut off")


def _never(size: int, limit: int) -> ServerError:
    return Unavailable(f"a body of {size} bytes is more than {limit}")
