"""The request streams of one HTTP/2 connection: accepts or refuses requests, feeds their bodies, and sends replies.

    connection (events) -> [streams] -> exchange -> the application … output
                           [streams] -> direct_infer … answers -> [streams] -> output

Plain inference takes no task: its body is assembled here, it is submitted to the core, and the reply comes by a
callback. Every other request runs in a task of its own, whose scope its RST_STREAM and the loss of the connection
cancel. Each counts in the request memory, beside its body, as long as anything is there for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import trio
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from protocol.access.control import NO_KEYS
from protocol.errors import Internal, Overloaded, ServerError, Unavailable
from protocol.http.direct_infer import DirectHead, DirectInference, DirectRequest
from protocol.http.errors import LimitError, TooManyStreams, error_reply
from protocol.http.exchange import App
from protocol.http.http2.body import StreamBody
from protocol.http.http2.exchange import Http2Exchange
from protocol.http.http2.head import StreamHead, no_head, read_head
from protocol.http.http2.output import HttpOutput
from protocol.http.reply import Reply
from protocol.http.settings import ConnectionLimits
from protocol.http2 import events
from protocol.http2.flood_limits import FloodLimits
from protocol.http2.output import PORTIONS
from protocol.http2.request_headers import Headers
from protocol.limits.request_memory import LIMIT_NAME, STREAM_MEMORY, RequestMemory
from protocol.messages import Buffer

# What a client may send on one stream, and in all, before it is read.
STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 1 << 24


# Why a request is refused that its client may try again.
CONNECTION_ENDS = "the connection ends, and its client has been told so; another connection may be opened"

ExchangeHandler: TypeAlias = Callable[[Http2Exchange], Awaitable[None]]
OnEnd: TypeAlias = Callable[[bool], None]
"""Told, whatever comes of an exchange, whether its whole reply was sent."""


@dataclass(slots=True, eq=False)
class RequestHead:
    """What a header block means; `plain` where its requests may need no task, as long as the server has the same
    keys."""

    head: StreamHead
    plain: DirectHead | None


def no_request(reason: str) -> RequestHead:
    """What a header block means that is no request's."""
    return RequestHead(no_head(reason), None)


class Owner(Protocol):
    """The connection."""

    def note_request(self) -> None:
        """One has been taken."""

    def note_last_end(self) -> None:
        """The last request has ended."""


class PlainStream:
    """A request that needs no task, up to now. Implements `direct_infer.ReplySink`."""

    __slots__ = ("body", "head", "held", "id", "request", "streams", "was_seen")

    def __init__(self, streams: Http2Streams, stream_id: int, head: RequestHead) -> None:
        self.streams = streams
        self.id = stream_id
        self.head = head
        self.body: StreamBody | None = None  # as long as it comes
        self.request: DirectRequest | None = None  # once the core has it
        self.held = 0  # bytes of the body that are counted
        self.was_seen = False  # when the time was looked at

    @property
    def peer(self) -> str:
        return self.streams.out.peer

    def answer(self, request: DirectRequest) -> None:
        self.streams.answer(self, request)

    def fail_answer(self, request: DirectRequest, error: Exception) -> None:
        """Implements `direct_infer.ReplySink`."""
        self.streams.fail_answer(self, request)


class Http2Streams:
    """Attributes:
    refuses: no request is taken any more, and the client has had the time to hear of that.
    """

    __slots__ = (
        "_app",
        "_direct",
        "_exchanges",
        "_floods",
        "_keys",
        "_leaving",
        "_limits",
        "_memory",
        "_nursery",
        "_on_limit",
        "_owner",
        "_plain",
        "_portion",
        "out",
        "refuses",
    )

    def __init__(
        self,
        app: App,
        direct: DirectInference | None,
        limits: ConnectionLimits,
        out: HttpOutput,
        floods: FloodLimits,
        owner: Owner,
        on_limit: Callable[[str], None],
        memory: RequestMemory,
    ) -> None:
        self._app = app
        self._memory = memory
        self._direct = direct
        self._keys = NO_KEYS if direct is None else direct.keys
        self._limits = limits
        self.out = out
        self._floods = floods
        self._owner = owner
        self._on_limit = on_limit
        self._portion = STREAM_WINDOW // PORTIONS
        self._exchanges: dict[int, Http2Exchange] = {}
        self._plain: dict[int, PlainStream] = {}
        self._leaving = 0  # given up, and their tasks have not ended
        self.refuses = False

    def __len__(self) -> int:
        return len(self._exchanges) + len(self._plain)

    def is_last(self, stream_id: int) -> bool:
        """Whether there is no other request."""
        return len(self) == (stream_id in self._exchanges or stream_id in self._plain)

    def begin(self, nursery: trio.Nursery) -> None:
        """Before the first event; the nursery is the connection's."""
        self._nursery = nursery

    def terminate(self) -> None:
        """The connection is lost: nothing more can be sent."""
        for stream_id in [*self._plain]:
            self._drop(self._take_away(stream_id))
        for exchange in self._exchanges.values():
            exchange.scope.cancel()

    def read_head(self, headers: Headers) -> RequestHead:
        """What a header block means, the same for all requests that begin with it."""
        head = read_head(headers, self._limits.max_header_size)
        return RequestHead(head, self._plain_head(head))

    def _plain_head(self, head: StreamHead) -> DirectHead | None:
        if self._direct is None or not head.declared or head.refusal is not None or head.is_malformed:
            return None
        return self._direct.head(head.head, b"")

    def room(self, stream_id: int, size: int) -> memoryview | None:
        """Where the next data of a request belongs, at most `size` bytes, if that is known."""
        plain = self._plain.get(stream_id)
        if plain is not None:
            return None if plain.body is None else plain.body.room(size)
        exchange = self._exchanges.get(stream_id)
        return None if exchange is None or exchange.is_dropping else exchange.body.room(size)

    # What has come.

    def on_request(self, event: events.RequestReceived) -> None:
        request: RequestHead = event.request
        self.out.expect_updates_of_stream()
        if (
            self.refuses
            or self._has_too_many
            or self._has_no_memory
            or request.head.refusal is not None
            or request.head.is_malformed
        ):
            self._refuse(event, request)
            self.out.taken += event.flow_controlled_length
            return
        self._owner.note_request()
        plain = request.plain
        if plain is not None and plain.keys is not self._keys.current:
            plain = request.plain = self._plain_head(request.head)
        if plain is not None and not (plain.account is not None and plain.is_refused):
            stream = PlainStream(self, event.stream_id, request)
            data = event.data
            self._keep(stream)
            if data is not None and len(data) == plain.size and self._submit(stream, plain, data):
                self.out.taken += event.flow_controlled_length
                return
            if data is None and not event.stream_ended:
                stream.body = StreamBody(plain.size, self._memory.rooms)
                return
            self._take_away(event.stream_id)
        body = StreamBody(request.head.declared, self._memory.rooms)
        if event.data is not None:
            body.feed(event.data, event.flow_controlled_length, has_ended=True)
        body.has_ended = event.stream_ended
        self._run_in_task(event.stream_id, request.head, body)

    @property
    def _has_no_memory(self) -> bool:
        """For one request more. The only one of a connection is always taken: it may ask for the server's health."""
        return self._memory.left < STREAM_MEMORY and bool(self._exchanges or self._plain)

    @property
    def _has_too_many(self) -> bool:
        most = self._limits.max_concurrent_streams
        return len(self._exchanges) + len(self._plain) >= most or self._leaving >= 2 * most

    def _refuse(self, event: events.RequestReceived, request: RequestHead) -> None:
        stream_id, head = event.stream_id, request.head
        if self.refuses:
            if self._direct is not None:
                self._direct.note_refused_head(Unavailable(CONNECTION_ENDS), "REFUSED_STREAM", self.out.peer, head.head)
            self.out.refuse_stream(stream_id)
            return
        if head.is_malformed:
            self.out.reset(stream_id, ErrorCodes.PROTOCOL_ERROR)
            return
        error: ServerError | None = head.refusal
        code = ErrorCodes.CANCEL
        if error is None and self._has_too_many:  # perhaps it was opened before the client knew how many there may be
            self._floods.count_control_frame()
            error, code = TooManyStreams(self._limits.max_concurrent_streams), ErrorCodes.REFUSED_STREAM
        elif error is None:
            error = self._memory.refusal(STREAM_MEMORY)
            self._on_limit(LIMIT_NAME)
        if isinstance(error, LimitError):
            self._on_limit(error.limit)
        reply = error_reply(error)
        if self._direct is not None:
            self._direct.name_refusal(reply, head.head.headers)
            if request.plain is not None:
                self._direct.note_refusal(request.plain, error, reply.status, self.out.peer, head.head)
            else:
                self._direct.note_refused_head(error, reply.status, self.out.peer, head.head)
        self.out.refuse(stream_id, reply, has_ended=event.stream_ended, code=code)

    def on_data(self, event: events.DataReceived) -> None:
        stream_id = event.stream_id
        if not event.data and not event.stream_ended:
            self._floods.count_control_frame()
        plain = self._plain.get(stream_id)
        exchange = self._exchanges.get(stream_id)
        body = None if plain is None else plain.body
        if exchange is not None:
            body = exchange.body
        if body is None:  # of one that was answered without waiting for it
            self.out.taken += event.flow_controlled_length
            self.out.acknowledge_stream(stream_id, event.flow_controlled_length)
            return
        body.feed(event.data, event.flow_controlled_length, has_ended=event.stream_ended)
        self._note_arrival(plain, exchange, body)

    def on_trailers(self, event: events.TrailersReceived) -> None:
        plain = self._plain.get(event.stream_id)
        exchange = self._exchanges.get(event.stream_id)
        if exchange is not None:
            exchange.body.has_ended = True
            self._note_arrival(None, exchange, exchange.body)
        elif plain is not None and plain.body is not None:
            plain.body.has_ended = True
            self._note_arrival(plain, None, plain.body)

    def _note_arrival(self, plain: PlainStream | None, exchange: Http2Exchange | None, body: StreamBody) -> None:
        if body.is_wrong:  # not as long as its head says (RFC 9113, 8.1.1)
            stream_id = exchange.id if exchange is not None else plain.id if plain is not None else 0
            self.out.taken += body.take_unacknowledged()
            self.out.reset(stream_id, ErrorCodes.PROTOCOL_ERROR)
            self._give_up(stream_id)
        elif exchange is not None:
            exchange.note_arrival()
        elif plain is not None:
            self._gather(plain, body)

    def on_stream_reset(self, event: events.StreamReset) -> None:
        if self._give_up(event.stream_id):
            self._floods.count_reset()
        else:
            self._floods.count_control_frame()

    def _give_up(self, stream_id: int) -> bool:
        """Its client has reset it, or made an error for which it is reset; false where it has ended."""
        if stream_id in self._plain:
            self._drop(self._take_away(stream_id))
            self._note_end()
            return True
        exchange = self._exchanges.pop(stream_id, None)
        if exchange is None:
            return False
        self._leaving += 1
        self.out.taken += exchange.body.take_unacknowledged()
        exchange.scope.cancel()
        self._note_end()
        return True

    def fail(self, stream_id: int) -> None:
        """A defect while an event of a request was handled: end that request, in whatever state it is."""
        exchange = self._exchanges.get(stream_id)
        if exchange is not None and exchange.has_started:
            self.out.reset(stream_id, ErrorCodes.INTERNAL_ERROR)
            self._give_up(stream_id)
            return
        try:
            self._give_up(stream_id)
        finally:
            reply = error_reply(Internal("internal error"))
            try:
                self.out.refuse(stream_id, reply, has_ended=False, code=ErrorCodes.INTERNAL_ERROR)
                self.out.write()
            except ProtocolError:  # some of a response has left
                self.out.reset(stream_id, ErrorCodes.INTERNAL_ERROR)

    def fail_all(self) -> None:
        """As `fail`, for all requests in flight: the connection has failed."""
        for stream_id in [*self._plain, *self._exchanges]:
            self.fail(stream_id)

    def fail_answer(self, stream: PlainStream, request: DirectRequest) -> None:
        """Implements `direct_infer.ReplySink`: `answer` has raised."""
        self.fail(stream.id)
        if request.submitted is not None and self._direct is not None:
            self._direct.close(request)

    def acknowledge(self, stream_id: int, body: StreamBody) -> None:
        """Implements `http2_exchange.StreamOwner`."""
        if size := body.take_unacknowledged():
            self.out.acknowledge(stream_id, size)

    # Those without a task.

    def _keep(self, stream: PlainStream) -> None:
        self._plain[stream.id] = stream
        self._memory.held += STREAM_MEMORY

    def _take_away(self, stream_id: int) -> PlainStream:
        self._memory.held -= STREAM_MEMORY
        return self._plain.pop(stream_id)

    def _submit(self, stream: PlainStream, plain: DirectHead, data: Buffer) -> bool:
        assert self._direct is not None
        request = self._direct.begin(plain, data, stream)
        if request is None:
            return False
        stream.request = request
        return True

    def _gather(self, stream: PlainStream, body: StreamBody) -> None:
        """More of a body has arrived."""
        assert self._direct is not None
        plain = stream.head.plain
        assert plain is not None
        if not body.has_ended:
            if not self._direct.hold(body.received - stream.held):
                self._hand_over(stream)  # a task says that there is no memory for it
                return
            stream.held = body.received
            if body.unacknowledged > self._portion:
                size = body.take_unacknowledged()
                self.out.taken += size
                self.out.acknowledge_stream(stream.id, size)
            return
        self.out.taken += body.take_unacknowledged()
        data = body.whole()
        self._direct.release(stream.held)
        stream.held = 0
        stream.body = None
        if not self._submit(stream, plain, data):
            self._take_away(stream.id)
            whole = StreamBody(plain.size)
            whole.feed(data, 0, has_ended=True)
            self._run_in_task(stream.id, stream.head.head, whole)

    def hand_over_slow(self) -> None:
        """Bodies that were already incomplete at the last call get a task, which applies the body timeouts."""
        for stream in [each for each in self._plain.values() if each.body is not None]:
            if stream.was_seen:
                self._hand_over(stream)
            stream.was_seen = True

    def _hand_over(self, stream: PlainStream) -> None:
        assert stream.body is not None
        assert self._direct is not None
        self._take_away(stream.id)
        self._direct.release(stream.held)
        self._run_in_task(stream.id, stream.head.head, stream.body)

    def _drop(self, stream: PlainStream) -> None:
        assert self._direct is not None
        if stream.request is not None:
            request, stream.request = stream.request, None
            self._direct.give_up(request)
        elif stream.body is not None:
            self._direct.release(stream.held)
            self.out.taken += stream.body.take_unacknowledged()

    def answer(self, stream: PlainStream, request: DirectRequest) -> None:
        """The reply of a request is ready."""
        direct = self._direct
        assert direct is not None
        if self._plain.get(stream.id) is not stream or stream.request is not request:
            if request.submitted is not None:  # its begin has failed behind its submission
                direct.close(request)
            return  # else it was given up
        self._take_away(stream.id)
        stream.request = None
        reply = direct.reply(request)
        if reply is not None and self.out.send_reply_at_once(stream.id, reply, direct.replies):
            direct.close(request)  # while the answer is on its way
            if not self._plain and not self._exchanges:
                self._note_end()
            return
        request.is_logged_later = True
        direct.close(request)
        body = StreamBody(None)
        body.has_ended = True
        replies = [reply]
        finish = partial(self._finish, request, replies)
        self._run_in_task(stream.id, stream.head.head, body, finish, partial(direct.note_end, request))

    async def _finish(self, request: DirectRequest, replies: list[Reply | None], exchange: Http2Exchange) -> None:
        """What is left to do for a request that has its answer: `replies` is emptied, so that nothing holds a reply
        that there is no memory for."""
        direct = self._direct
        assert direct is not None
        reply = replies.pop() or await direct.encode(request)
        try:
            await exchange.reply(reply)
        except Overloaded as error:
            reply = direct.error_reply(request, error)
            request.reply = error
            direct.note_reply(request, reply)
            await exchange.reply(reply)

    # Those with a task.

    def _run_in_task(
        self,
        stream_id: int,
        head: StreamHead,
        body: StreamBody,
        app: ExchangeHandler | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        exchange = Http2Exchange(self, stream_id, head, body)
        self._exchanges[stream_id] = exchange
        self._memory.held += STREAM_MEMORY
        self._nursery.start_soon(self._serve, exchange, app or self._app, on_end)

    async def _serve(self, exchange: Http2Exchange, app: ExchangeHandler, on_end: OnEnd | None) -> None:
        try:
            with exchange.scope:
                if exchange.id in self._exchanges:  # else given up in the burst that it came with
                    await exchange.run_in(app)
        finally:
            is_given_up = self._exchanges.pop(exchange.id, None) is None
            self._memory.held -= STREAM_MEMORY
            self._leaving -= is_given_up
            if on_end is not None:
                on_end(exchange.is_complete)
        if is_given_up:
            return
        self.acknowledge(exchange.id, exchange.body)
        if (code := exchange.reset_code) is not None:
            self.out.reset(exchange.id, code)
        self._note_end()

    def _note_end(self) -> None:
        if not self._plain and not self._exchanges:
            self._owner.note_last_end()
