"""The application of a relaying edge: each request is answered by the core's edge, as it comes and as it goes.

Bodies are streamed both ways: what a client sends slowly, or reads slowly, is waited for here and in the core alike. A
response whose length is told is read whole before it is sent on, where there is memory, so that the core is done with
it. Cancelled, for its client has gone, a request closes its connection to the core, which cancels it there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from protocol.errors import ServerError, Unavailable
from protocol.http.body import BodyLimit
from protocol.http.errors import LimitError, error_reply
from protocol.http.exchange import BodyStream, ClientGone, Exchange
from protocol.http.relay.request import request_head
from protocol.http.relay.response import NoResponse, ResponseHead
from protocol.http.relay.upstream import Upstream, Upstreams
from protocol.http.reply import Reply
from protocol.limits.request_memory import LIMIT_NAME, RequestMemory, RequestShare
from protocol.messages import Buffer

logger = logging.getLogger(__name__)

_NO_LENGTH = -1
# The core has a limit on pauses too, and says so in words that suit the call; this one is for when it does not.
_LATER_SECONDS = 5.0
# Of a body, sent on with the head where so much of it is there.
_AT_ONCE = 256 * 1024


class HeadReply(Reply):
    """The reply to a HEAD: `declared` is how long the content would be."""

    declared: int = 0

    @property
    def length(self) -> int:
        return self.declared


@dataclass(frozen=True, slots=True)
class RelayApp:
    """`memory` counts responses that are read whole; `on_limit` is told of limits that refuse something. `body_timeout`
    and `linger` are as in `HttpSettings`."""

    upstreams: Upstreams
    memory: RequestMemory
    on_limit: Callable[[str], None]
    body_timeout: float
    linger: float

    async def __call__(self, exchange: Exchange) -> None:
        upstream: Upstream | None = None
        try:
            upstream = await self.upstreams.take(exchange.peer)
            await self._relay(exchange, upstream)
        except ClientGone:
            return
        except NoResponse as error:
            logger.debug("a request was not answered by the core: %s", error)
            if not exchange.has_started:  # else the client sees that the response was cut off
                await self._refuse(exchange, _not_answered())
        except ServerError as error:
            if not exchange.has_started:
                await self._refuse(exchange, error)
        finally:
            if upstream is not None:
                self.upstreams.give_back(upstream)

    async def reply_to(self, exchange: Exchange, body: Buffer) -> Reply | None:
        """The core's reply to a request whose body was read here, and decoded; None where it was sent as it came, which
        is so if its length is not told, or there is no memory for it.

        Raises:
            ServerError: there is none.
            ClientGone: the client has left.
        """
        upstream: Upstream | None = None
        try:
            upstream = await self.upstreams.take(exchange.peer)
            upstream.begin(exchange.method)
            await upstream.send((request_head(exchange, b"content-length: %d\r\n" % len(body), is_decoded=True), body))
            head = await upstream.response()
            while head is None:
                head = await upstream.response()
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
        finally:
            if upstream is not None:
                self.upstreams.give_back(upstream)

    async def _refuse(self, exchange: Exchange, error: ServerError) -> None:
        if isinstance(error, LimitError):
            self.on_limit(error.limit)
        await exchange.reply_early(error_reply(error), linger=self.linger)

    async def _relay(self, exchange: Exchange, upstream: Upstream) -> None:
        upstream.begin(exchange.method)
        if not exchange.may_have_body:
            await upstream.send((request_head(exchange, b"", expects_continue=False),))
            response = await upstream.response()
            while response is None:
                response = await upstream.response()
            await self._answer(exchange, upstream, response)
            return
        response, is_whole = await self._send_with_body(exchange, upstream)
        if is_whole:
            await self._answer(exchange, upstream, response)
        else:  # it refuses the rest
            await exchange.reply_early(await self._whole_reply(exchange, upstream, response), linger=self.linger)

    # The request.

    async def _send_with_body(self, exchange: Exchange, upstream: Upstream) -> tuple[ResponseHead, bool]:
        """The response's head, and whether the request was sent whole before it came."""
        body = exchange.stream_body(BodyLimit(1 << 63, _never), pause_seconds=self.body_timeout + _LATER_SECONDS)
        length = int(exchange.headers.get(b"content-length", b"%d" % _NO_LENGTH))
        expects_continue = exchange.headers.get(b"expect", b"").lower() == b"100-continue"
        here: list[Buffer] = []
        has_ended = False
        if not expects_continue:
            here, has_ended = await _what_is_here(body)
        if has_ended and length == _NO_LENGTH:
            length = body.received
        framing = b"transfer-encoding: chunked\r\n" if length == _NO_LENGTH else b"content-length: %d\r\n" % length
        if not length:
            framing = b""
        head = request_head(exchange, framing, expects_continue=expects_continue)
        if expects_continue:
            await upstream.send((head,))
            if (response := await upstream.response()) is not None:
                return response, False
        elif has_ended:
            _check_length(length, body)
            await upstream.send((head, *here))
            response = await upstream.response()
            while response is None:
                response = await upstream.response()
            return response, True
        else:
            await upstream.send((head, *_framed(here, length)))
        return await _Pump(body, upstream, length).run()

    # The response.

    async def _answer(self, exchange: Exchange, upstream: Upstream, head: ResponseHead) -> None:
        if self._is_streamed(exchange, head):
            await self._stream(exchange, upstream, head)
            return
        is_bodiless = exchange.method == "HEAD" or head.status in (204, 304)
        with RequestShare(self.memory, partial(self.on_limit, LIMIT_NAME)) as share:
            share.take(0 if is_bodiless else head.length or 0)
            reply = await self._whole_reply(exchange, upstream, head)
            upstream_is_done = upstream.is_reusable
            assert upstream_is_done or head.closes
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
    """Sends the rest of a body while the response is awaited, which may come before its end."""

    def __init__(self, body: BodyStream, upstream: Upstream, length: int) -> None:
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
        except (ServerError, ClientGone) as error:
            self._failure = error
            scope.cancel()


async def _what_is_here(body: BodyStream) -> tuple[list[Buffer], bool]:
    """What has come of a body, up to a size, and whether that is all."""
    parts: list[Buffer] = []
    with trio.CancelScope() as at_once:
        at_once.cancel()  # nothing is waited for
        while body.received < _AT_ONCE:
            data = await body.receive()
            if not data:
                return parts, True
            parts.append(data)
    return parts, False


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
