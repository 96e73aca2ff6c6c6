"""The calls of one gRPC connection: accepts or refuses them, feeds their data, and ends them.

    connection (events) -> [calls] -> stream -> handler … outgoing
                           [calls] -> direct_calls

A call runs in a task, whose scope its deadline, its RST_STREAM and the loss of the connection cancel, or it needs none.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio
from grpclib.const import Handler, Status
from grpclib.exceptions import StreamTerminatedError

from protocol.access.restricted import HeaderLookup
from protocol.errors import DeadlineExceeded, ServerError, Unavailable
from protocol.failures import CallbackFailures
from protocol.grpc.call.access import call_ended, call_refused
from protocol.grpc.call.headers import (
    OK_TRAILERS,
    RESPONSE_HEADERS,
    Header,
    error_response,
    error_trailers,
    trailers,
)
from protocol.grpc.call.incoming import Incoming
from protocol.grpc.call.receiving import MESSAGE_MEMORY, ReceiveMemory
from protocol.grpc.call.request_head import RequestHead, read_head
from protocol.grpc.call.stream import SHUTTING_DOWN, Stream
from protocol.grpc.codec.messages import Codec
from protocol.grpc.connection.call_tasks import CallTasks
from protocol.grpc.connection.direct_calls import TOO_LATE, DirectCalls, deadline_exceeded
from protocol.grpc.connection.keepalive import Lifetime
from protocol.grpc.connection.outgoing import Outgoing
from protocol.grpc.inference.direct_infer import DirectInfer
from protocol.grpc.inference.failed_calls import MODEL_INFER, note_failure
from protocol.grpc.settings import ConnectionLimits
from protocol.grpc.status import UNEXPECTED
from protocol.http2 import events
from protocol.http2.flood_limits import FloodLimits
from protocol.http2.output import UPDATES_PER_STREAM
from protocol.http2.request_headers import Headers
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.log.access_log import OFF, AccessLog
from protocol.log.failure_log import FailureLog
from protocol.log.request_ids import RequestIds
from protocol.log.tags import of_call
from protocol.reactor.poller import Poller
from protocol.sync.turns import PacedTurns

# Of calls whose client has gone. A connection may have a thousand.
_GIVEN_UP_AT_ONCE = 32
_GIVING_UP = PacedTurns("calls that are given up")


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What all connections of a server share. `threads` bounds compression and decompression. Without `direct` every
    unary call takes a task. `flush` is the core's; the poller calls it itself. Without a poller each connection's task
    waits for its bytes. `key_name` finds the name of a caller's key; calls of
    `unlogged` methods are not in the access log."""

    handlers: Mapping[str, Handler]
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    counts: LimitCounter = field(default_factory=LimitCounter)
    memory: RequestMemory = field(default_factory=lambda: RequestMemory(sys.maxsize))
    codec: Codec = field(default_factory=Codec)
    threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(4))
    direct: DirectInfer | None = None
    flush: Callable[[], None] = lambda: None
    poller: Poller | None = None
    failures: CallbackFailures = field(default_factory=CallbackFailures)
    failure_log: FailureLog = field(default_factory=FailureLog)
    request_ids: RequestIds = field(default_factory=RequestIds)
    key_name: Callable[[HeaderLookup], str] = lambda headers: ""
    access_log: AccessLog = OFF
    unlogged: frozenset[str] = frozenset()

    def read_head(self, headers: Headers) -> RequestHead:
        direct_method = None if self.direct is None else MODEL_INFER
        return read_head(headers, self.handlers, self.limits.max_header_size, direct_method)


class Owner(Protocol):
    """The connection."""

    def note_last_end(self) -> None:
        """The last call has ended, and there may be no other."""

    def note_deadline(self) -> None:
        """`direct.next_deadline` is nearer than before."""


class Calls:
    """Notes in `lifetime` since when there are none.

    Attributes:
    memory: counts the messages of all of them.
    direct: those that need no task.
    is_draining: the server stops: no call is begun.
    refuses: the connection ends, and its peer has had the time to hear of it.
    """

    __slots__ = (
        "_floods",
        "_lifetime",
        "_limits",
        "_now",
        "_out",
        "_owner",
        "_shared",
        "_streams",
        "_tasks",
        "direct",
        "is_draining",
        "memory",
        "refuses",
    )

    def __init__(self, shared: Shared, out: Outgoing, lifetime: Lifetime, floods: FloodLimits, owner: Owner) -> None:
        self._shared = shared
        self._limits = shared.limits
        self._out = out
        self._lifetime = lifetime
        self._now = trio.lowlevel.current_clock().current_time
        self._floods = floods
        self._owner = owner
        self.memory = ReceiveMemory(shared.limits.max_receive_memory, shared.memory, shared.threads)
        self._streams: dict[int, Stream] = {}
        self.direct = DirectCalls(shared.direct, shared.limits, out, self.memory, self)
        self.is_draining = False
        self.refuses = False

    def __len__(self) -> int:
        return len(self._streams) + len(self.direct)

    def begin(self, nursery: trio.Nursery) -> None:
        """Before the first event; the nursery is the connection's."""
        self._tasks = CallTasks(nursery, self._handle, self._close_call, self._end_call)

    def drain(self) -> None:
        self.is_draining = True
        for stream in self._streams.values():
            stream.drain()

    async def give_up(self) -> None:
        """As `terminate`, but for so many calls in a turn of the loop, each with the requests that it has in progress.
        Some may be answered meanwhile."""
        ids = [*self._streams, *self.direct.arriving, *self.direct.begun]
        given_up = 0
        for stream_id in ids:
            stream = self._streams.get(stream_id)
            if stream is not None:
                given_up += stream.incoming.held // MESSAGE_MEMORY  # what each counts for, if not for more
                stream.terminate()
            else:
                self.direct.drop(stream_id)
            given_up += 1
            if given_up >= _GIVEN_UP_AT_ONCE:
                given_up = 0
                await _GIVING_UP.wait()

    def terminate(self) -> None:
        """The connection is lost: nothing more can be sent."""
        for stream in self._streams.values():
            stream.terminate()
        self.direct.terminate()

    def detach(self) -> None:
        """The connection has ended, and its nursery is closed: nothing is called any more but `direct`, for what was
        given up."""
        self.direct.detach()
        del self._tasks, self._owner

    def room(self, stream_id: int, size: int) -> memoryview | None:
        """Where the next data of a call belongs, at most `size` bytes, if that is known."""
        incoming = self.direct.arriving.get(stream_id)
        if incoming is None:
            stream = self._streams.get(stream_id)
            if stream is None:
                return None
            incoming = stream.incoming
        return incoming.room(size)

    # What has come.

    def on_request(self, event: events.RequestReceived) -> None:
        head: RequestHead = event.request
        self._out.window_updates += UPDATES_PER_STREAM  # as `expect_updates_of_stream`, without its call
        direct = self.direct
        count = len(self._streams) + len(direct.arriving) + len(direct.begun)
        if count >= self._limits.max_concurrent_streams or self.refuses or self.is_draining or head.handler is None:
            self._refuse(event, head)
            if event.flow_controlled_length:
                self._out.acknowledge(event.stream_id, event.flow_controlled_length)
            return
        if not count:
            self._lifetime.idle_since = math.inf
        data = event.data
        if head.is_direct and data is not None and direct.begin(event, data):
            return
        incoming = Incoming(self._out, event.stream_id, head, self._limits, self.memory)
        incoming.has_ended = event.stream_ended
        if head.is_direct and not event.stream_ended and incoming.refusal is None:
            direct.await_message(incoming)
            return
        stream = self.run_in_task(incoming)
        if data is not None:
            stream.feed(data, event.flow_controlled_length, has_ended=True)

    def _refuse(self, event: events.RequestReceived, head: RequestHead) -> None:
        stream_id, has_ended = event.stream_id, event.stream_ended
        if len(self) >= self._limits.max_concurrent_streams:
            # Some are reset, but their handlers not gone.
            self._out.count_refusal("max_concurrent_streams")
            self._note_refused(head, f"{len(self)} calls are in progress on this connection, which is the maximum")
            self._out.refuse_stream(stream_id)
            self._floods.count_control_frame()
        elif self.refuses:
            self._note_refused(head, "the connection ends, and its client has been told so")
            self._out.refuse_stream(stream_id)
        elif head.handler is None:
            if head.limit is not None:
                self._out.count_refusal(head.limit)
            if head.error is not None:
                note_failure(self._shared.failure_log, head.method, head.error)
                self._log_refusal(head, head.error)
            self._out.end_stream(stream_id, head.refusal or (), peer_has_ended=has_ended, request_id=self._new_id(head))
        else:
            error = Unavailable(SHUTTING_DOWN)
            response = error_response(error, head.method)
            note_failure(self._shared.failure_log, head.method, error)
            self._log_refusal(head, error)
            self._out.end_stream(stream_id, response, peer_has_ended=has_ended, request_id=self._new_id(head))

    def _new_id(self, head: RequestHead) -> bytes:
        """The id of a call that is refused."""
        return self._shared.request_ids.of(head.client)

    def _note_refused(self, head: RequestHead, reason: str) -> None:
        """Log a call that is refused by a reset of its stream, which says nothing but that."""
        error = Unavailable(f"{reason}; the client may try it again")
        note_failure(self._shared.failure_log, head.method, error)
        self._log_refusal(head, error)

    def on_data(self, event: events.DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.feed(event.data, event.flow_controlled_length, has_ended=event.stream_ended)
        else:
            incoming = self.direct.arriving.get(event.stream_id)
            if incoming is None:  # answered without waiting for it
                self._out.acknowledge(event.stream_id, event.flow_controlled_length)
            else:
                incoming.feed(event.data, event.flow_controlled_length, has_ended=event.stream_ended)
                self.direct.gather(incoming)
        if not event.data and not event.stream_ended:
            self._floods.count_control_frame()

    def on_trailers(self, event: events.TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id)
        incoming = self.direct.arriving.get(event.stream_id)
        if stream is not None:
            stream.end()
        elif incoming is not None:
            incoming.has_ended = True
            self.direct.gather(incoming)

    def on_stream_reset(self, event: events.StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.terminate()
        elif self.direct.drop(event.stream_id):
            self.note_end()
        else:
            self._floods.count_control_frame()
            return
        self._floods.count_reset()

    def fail(self, stream_id: int) -> None:
        """A defect while an event of a call was handled: end that call, in whatever state it is."""
        ending = trailers(Status.INTERNAL, UNEXPECTED)
        stream = self._streams.get(stream_id)
        request_id = self._shared.request_ids.make() if stream is None else stream.origin.name()
        try:
            if stream is None:
                self.direct.drop(stream_id)
            else:
                stream.terminate()
        finally:
            is_begun = stream is not None and stream.has_sent_headers
            self._out.fail_stream(stream_id, ending if is_begun else (*RESPONSE_HEADERS, *ending), request_id)
            self.note_end()

    def fail_all(self) -> None:
        """As `fail`, for all calls in progress: the connection has failed."""
        for stream_id in [*self._streams, *self.direct.arriving, *self.direct.begun]:
            self.fail(stream_id)

    # One call in a task.

    def run_in_task(self, incoming: Incoming) -> Stream:
        """Implements `direct_calls.Owner`."""
        shared = self._shared
        stream = Stream(
            self._out, incoming, shared.codec, self._limits, self.memory, shared.request_ids, shared.key_name
        )
        if shared.access_log.measures:
            stream.record = shared.access_log.begin()
        self._streams[stream.id] = stream
        self._tasks.start(stream)
        return stream

    async def _handle(self, stream: Stream) -> Sequence[Header]:
        if not stream.is_closed:
            try:
                await stream.handle(stream)
            except StreamTerminatedError:
                stream.is_closed = True
            except Exception as error:
                stream.failure = error
                stream.has_returned = True
                if error is not stream.noted_failure:
                    self._note_failure(stream, error)
                return error_trailers(error, stream.method, of_call(stream.origin))
        stream.has_returned = not stream.is_closed
        if stream.trailers is not None:
            return stream.trailers
        more = stream.more_trailers
        return OK_TRAILERS if more is None else (*OK_TRAILERS, *more())

    def _note_failure(self, stream: Stream, error: Exception) -> None:
        note_failure(self._shared.failure_log, stream.method, error, stream.describe)

    def _close_call(self, stream: Stream) -> None:
        del self._streams[stream.id]
        if self._shared.access_log.is_on:
            self._log_access(stream)
        stream.close()

    def _log_access(self, stream: Stream) -> None:
        """Write the line of a call that has ended, if it is to have one."""
        if stream.is_unlogged or stream.method in self._shared.unlogged:
            return
        failure, is_cancelled = stream.failure, not stream.has_returned
        if is_cancelled and self._now() >= stream.deadline:
            failure, is_cancelled = DeadlineExceeded(TOO_LATE), False
        described = partial(call_ended, stream, failure, is_cancelled=is_cancelled)
        self._shared.access_log.end(stream.record, failure is not None or is_cancelled, described)

    def _log_refusal(self, head: RequestHead, error: ServerError) -> None:
        if self._shared.access_log.is_on and head.method not in self._shared.unlogged:
            described = partial(call_refused, head, error, self._shared.request_ids, self._out.peer)
            self._shared.access_log.end(None, True, described)

    def _end_call(self, stream: Stream, ending: Sequence[Header] | None) -> None:
        if not stream.is_closed:
            if ending is None:
                ending = deadline_exceeded()
                self._note_failure(stream, DeadlineExceeded(TOO_LATE))
            if not stream.has_sent_headers:
                ending = (*RESPONSE_HEADERS, *ending)
            request_id = stream.origin.name()
            self._out.end_stream(stream.id, ending, peer_has_ended=stream.incoming.has_ended, request_id=request_id)
        self._out.flush()
        self.note_end()

    def note_end(self) -> None:
        """Implements `direct_calls.Owner`."""
        if not (self._streams or self.direct.arriving or self.direct.begun):
            self._lifetime.idle_since = self._now()
            if self.is_draining or self.refuses:
                self._owner.note_last_end()

    def note_deadline(self) -> None:
        """Implements `direct_calls.Owner`."""
        self._owner.note_deadline()
