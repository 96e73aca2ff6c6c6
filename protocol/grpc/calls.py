"""The calls of one connection: opened or refused, given what comes for them, and ended.

    connection (events) -> [calls] -> stream -> handler … outgoing
                           [calls] -> incoming -> direct_infer … answers -> [calls] -> outgoing

A call runs in a task, whose scope its deadline, its RST_STREAM and the loss of the connection cancel, or it needs none:
then its message is put together here, and whatever is not as it should be is left to a task.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio
from grpclib.const import Handler, Status
from grpclib.exceptions import StreamTerminatedError

from protocol.errors import Unavailable
from protocol.grpc.call_tasks import CallTasks
from protocol.grpc.codec import Codec
from protocol.grpc.direct_infer import METHOD, DirectCall, DirectInfer
from protocol.grpc.framing import whole_message
from protocol.grpc.headers import OK_TRAILERS, RESPONSE_HEADERS, Header, error_response, trailers
from protocol.grpc.http2 import events
from protocol.grpc.http2.request_headers import Headers
from protocol.grpc.incoming import Incoming, deadline_of
from protocol.grpc.outgoing import Outgoing
from protocol.grpc.receiving import ReceiveMemory
from protocol.grpc.request_head import RequestHead, read_head
from protocol.grpc.settings import ConnectionLimits
from protocol.grpc.status import status_of
from protocol.grpc.stream import SHUTTING_DOWN, Stream
from protocol.limits import LimitCounter
from protocol.messages import Buffer
from protocol.poller import Poller
from protocol.request_memory import RequestMemory

# Windows that a peer may open for a call before it gets anything.
_UPDATES_PER_CALL = 4


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What all connections of a server have in common. `threads` bounds compression and decompression. Without `direct`
    every unary call takes a task. `give_out` is the core's; the poller calls it itself. Without one each connection's
    task waits for its bytes."""

    handlers: Mapping[str, Handler]
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    counts: LimitCounter = field(default_factory=LimitCounter)
    memory: RequestMemory = field(default_factory=lambda: RequestMemory(sys.maxsize))
    codec: Codec = field(default_factory=Codec)
    threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(4))
    direct: DirectInfer | None = None
    give_out: Callable[[], None] = lambda: None
    poller: Poller | None = None


class Owner(Protocol):
    """The connection."""

    def count_control_frame(self) -> None:
        """One that carries nothing of a call, or one of a call too many. Raises ProtocolError if it is one too many."""

    def count_reset(self) -> None:
        """As `count_control_frame`, of a call that the peer has reset."""

    def note_calls(self, *, has_calls: bool) -> None:
        """The first call has begun, or the last one has ended."""

    def note_deadline(self) -> None:
        """`next_deadline` is nearer than before."""


class Calls:
    """Attributes:
    memory: counts the messages of all of them.
    direct: those without a task whose requests have come, by their streams.
    is_draining: the server stops: no call is begun.
    refuses: the connection ends, and its peer has had the time to hear of it.
    next_deadline: when the first of the calls without a task has to be looked at, or before that, in seconds of Trio's
        clock.
    """

    def __init__(self, shared: Shared, out: Outgoing, owner: Owner) -> None:
        self._shared = shared
        self._limits = shared.limits
        self._out = out
        self._owner = owner
        self.memory = ReceiveMemory(shared.limits.max_receive_memory, shared.memory, shared.threads)
        self._streams: dict[int, Stream] = {}
        self._infer = shared.direct
        self._arriving: dict[int, Incoming] = {}  # those that may need no task
        self.direct: dict[int, DirectCall] = {}
        self.is_draining = False
        self.refuses = False
        self.next_deadline = math.inf

    def __len__(self) -> int:
        return len(self._streams) + len(self._arriving) + len(self.direct)

    def begin(self, nursery: trio.Nursery) -> None:
        """Before the first event; the nursery is the connection's."""
        self._tasks = CallTasks(nursery, self._handle, self._close_call, self._end_call)

    def drain(self) -> None:
        self.is_draining = True
        for stream in self._streams.values():
            stream.drain()

    def terminate(self) -> None:
        """Nothing more can be sent."""
        for stream in self._streams.values():
            stream.terminate()
        for incoming in self._arriving.values():
            incoming.close()
        self._arriving.clear()
        if self._infer is not None:
            for call in self.direct.values():
                self._infer.give_up(call)
        self.direct.clear()

    def end_late(self, now: float) -> None:
        """End the calls without a task whose deadline has passed; a task does it where the message has not come."""
        if now < self.next_deadline:
            return
        late = [call for call in self.direct.values() if call.deadline <= now]
        for call in late:
            del self.direct[call.id]
            self._give_up(call)
            ending = (*RESPONSE_HEADERS, *_deadline_exceeded())
            self._out.end_stream(call.id, ending, peer_has_ended=True)
        for incoming in [each for each in self._arriving.values() if _gathers_until(each) <= now]:
            self._run_in_task(incoming)
        times = [call.deadline for call in self.direct.values()]
        times += [_gathers_until(incoming) for incoming in self._arriving.values()]
        self.next_deadline = min(times, default=math.inf)
        if late:
            self._out.flush()
            self._note_end()

    def read_head(self, headers: Headers) -> RequestHead:
        direct_method = None if self._infer is None else METHOD
        return read_head(headers, self._shared.handlers, self._limits.max_header_size, direct_method)

    def room(self, stream_id: int, size: int) -> memoryview | None:
        """Where the next data of a call belongs, at most `size` bytes, if that is known."""
        incoming = self._arriving.get(stream_id)
        if incoming is None:
            stream = self._streams.get(stream_id)
            if stream is None:
                return None
            incoming = stream.incoming
        return incoming.room(size)

    # What has come.

    def on_request(self, event: events.RequestReceived) -> None:
        head: RequestHead = event.request
        self._out.window_updates += _UPDATES_PER_CALL
        count = len(self._streams) + len(self._arriving) + len(self.direct)
        if count >= self._limits.max_concurrent_streams or self.refuses or self.is_draining or head.handler is None:
            self._refuse(event, head)
            if event.flow_controlled_length:
                self._out.acknowledge(event.stream_id, event.flow_controlled_length)
            return
        if not count:
            self._owner.note_calls(has_calls=True)
        data = event.data
        if head.is_direct and data is not None and self._is_begun(event, data):
            return
        incoming = Incoming(self._out, event.stream_id, head, self._limits, self.memory)
        incoming.has_ended = event.stream_ended
        if head.is_direct and not event.stream_ended:
            self._arriving[incoming.id] = incoming
            incoming.note_progress()
            self._look_at(_gathers_until(incoming))
            return
        stream = self._run_in_task(incoming)
        if data is not None:
            stream.feed(data, event.flow_controlled_length, has_ended=True)

    def _refuse(self, event: events.RequestReceived, head: RequestHead) -> None:
        stream_id, has_ended = event.stream_id, event.stream_ended
        if len(self) >= self._limits.max_concurrent_streams:
            # Some are reset, but their handlers not gone.
            self._out.count_refusal("max_concurrent_streams")
            self._out.refuse_stream(stream_id)
            self._owner.count_control_frame()
        elif self.refuses:
            self._out.refuse_stream(stream_id)
        elif head.handler is None:
            if head.limit is not None:
                self._out.count_refusal(head.limit)
            self._out.end_stream(stream_id, head.refusal or (), peer_has_ended=has_ended)
        else:
            response = error_response(Unavailable(SHUTTING_DOWN), head.method)
            self._out.end_stream(stream_id, response, peer_has_ended=has_ended)

    def _is_begun(self, event: events.RequestReceived, data: Buffer) -> bool:
        """Whether a call that came whole could be begun without a task."""
        size = len(data)
        message = whole_message(data, self._limits.max_message_size)
        if message is None:
            return False
        head: RequestHead = event.request
        deadline = math.inf if head.timeout is None else deadline_of(head)
        if not self.memory.take(size) or not self._submit(event.stream_id, head, message, size, deadline):
            self.memory.give(size)
            return False
        self._out.taken += event.flow_controlled_length
        return True

    def _submit(self, stream_id: int, head: RequestHead, message: memoryview, size: int, deadline: float) -> bool:
        assert self._infer is not None
        call = self._infer.begin(self, stream_id, head, message, size, deadline)
        if call is None:
            return False
        self.direct[stream_id] = call
        if deadline < self.next_deadline:
            self._look_at(deadline)
        return True

    def _look_at(self, time: float) -> None:
        if time < self.next_deadline:
            self.next_deadline = time
            self._owner.note_deadline()

    def end_burst(self) -> None:
        """All events of a read are there."""
        self._out.acknowledge_taken()

    def on_data(self, event: events.DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.feed(event.data, event.flow_controlled_length, has_ended=event.stream_ended)
        else:
            incoming = self._arriving.get(event.stream_id)
            if incoming is None:  # answered without waiting for it
                self._out.acknowledge(event.stream_id, event.flow_controlled_length)
            else:
                incoming.feed(event.data, event.flow_controlled_length, has_ended=event.stream_ended)
                self._gather(incoming)
        if not event.data and not event.stream_ended:
            self._owner.count_control_frame()

    def _gather(self, incoming: Incoming) -> None:
        """There is more of it."""
        if not incoming.has_ended and not incoming.is_decided:
            incoming.acknowledge_in_burst()
            incoming.note_progress()
            return
        message = incoming.whole() if incoming.has_ended else None
        if message is None or not self._submit(incoming.id, incoming.head, message, incoming.held, incoming.deadline):
            self._run_in_task(incoming)
            return
        del self._arriving[incoming.id]
        incoming.let_go()

    def on_trailers(self, event: events.TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id)
        incoming = self._arriving.get(event.stream_id)
        if stream is not None:
            stream.end()
        elif incoming is not None:
            incoming.has_ended = True
            self._gather(incoming)

    def on_stream_reset(self, event: events.StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        incoming = self._arriving.pop(event.stream_id, None)
        call = self.direct.pop(event.stream_id, None)
        if stream is not None:
            stream.terminate()
        elif incoming is not None:
            incoming.close()
            self._note_end()
        elif call is not None:
            self._give_up(call)
            self._note_end()
        else:
            self._owner.count_control_frame()
            return
        self._owner.count_reset()

    # One call in a task.

    def _run_in_task(self, incoming: Incoming) -> Stream:
        self._arriving.pop(incoming.id, None)
        stream = Stream(self._out, incoming, self._shared.codec, self._limits, self.memory)
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
                return trailers(*status_of(error, stream.method))
        return OK_TRAILERS

    def _close_call(self, stream: Stream) -> None:
        del self._streams[stream.id]
        stream.close()

    def _end_call(self, stream: Stream, ending: Sequence[Header] | None) -> None:
        if not stream.is_closed:
            if ending is None:
                ending = _deadline_exceeded()
            if not stream.has_sent_headers:
                ending = (*RESPONSE_HEADERS, *ending)
            self._out.end_stream(stream.id, ending, peer_has_ended=stream.incoming.has_ended)
        self._out.flush()
        self._note_end()

    def _note_end(self) -> None:
        if not len(self):
            self._owner.note_calls(has_calls=False)

    # One call without a task.

    def answer(self, call: DirectCall) -> None:
        """Implements `direct_infer.Asking`."""
        assert self._infer is not None
        if self.direct.pop(call.id, None) is None:  # given up
            return
        try:
            message = self._infer.end(call)
        except Exception as error:
            self._out.end_stream(call.id, error_response(error, call.head.method), peer_has_ended=True)
            self._out.write_after(self._infer.answers)
        else:
            if message is None:
                stream = self._finish_in_task(call, partial(self._infer.send, call))
                stream.on_close = partial(self._infer.close, call)
                return
            if not self._out.send_response(call.id, message, self._infer.answers):  # its client has to make room first
                self._finish_in_task(call, partial(_send, message))
                return
        if not (self.direct or self._streams or self._arriving):
            self._owner.note_calls(has_calls=False)

    def _finish_in_task(self, call: DirectCall, handle: Callable[[Stream], Awaitable[None]]) -> Stream:
        """What is left to do for it."""
        incoming = Incoming(self._out, call.id, call.head, self._limits, self.memory)
        incoming.deadline = call.deadline
        incoming.has_ended = True
        stream = self._run_in_task(incoming)
        stream.handle = handle
        return stream

    def _give_up(self, call: DirectCall) -> None:
        assert self._infer is not None
        self._infer.give_up(call)


def _gathers_until(incoming: Incoming) -> float:
    """When a task has to take the call, whatever has come of it."""
    return min(incoming.progress_by, incoming.deadline)


async def _send(message: Sequence[Buffer], stream: Stream) -> None:
    await stream.send_message(message)


def _deadline_exceeded() -> Sequence[Header]:
    return trailers(Status.DEADLINE_EXCEEDED, "the call's deadline has passed")
