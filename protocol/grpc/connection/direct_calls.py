"""Direct calls: unary calls that need no task, as their message is submitted to the core and answered by callbacks.

    calls -> [direct_calls] -> incoming, direct_infer … answers -> [direct_calls] -> outgoing

Any call that is not plain is left to a task.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from grpclib.const import Status

from protocol.errors import DeadlineExceeded, Internal
from protocol.grpc.call.framing import whole_message
from protocol.grpc.call.headers import RESPONSE_HEADERS, Header, error_response, trailers
from protocol.grpc.call.incoming import Incoming, deadline_of
from protocol.grpc.call.receiving import CALL_MEMORY, ReceiveMemory
from protocol.grpc.call.request_head import RequestHead
from protocol.grpc.call.stream import Stream
from protocol.grpc.connection.outgoing import Outgoing
from protocol.grpc.inference.direct_infer import DirectCall, DirectInfer
from protocol.grpc.settings import ConnectionLimits
from protocol.http2 import events
from protocol.messages import Buffer
from protocol.reactor.replies import describe_pending

TOO_LATE = "the call's deadline has passed"


class Owner(Protocol):
    """All calls of the connection."""

    def run_in_task(self, incoming: Incoming) -> Stream:
        """The call needs a task after all."""

    def note_end(self) -> None:
        """A call has ended."""

    def note_deadline(self) -> None:
        """`next_deadline` is nearer than before."""


class DirectCalls:
    """Attributes:
    memory: counts the messages of all calls of the connection.
    arriving: those whose message is not whole, by their streams.
    begun: those that the core has.
    next_deadline: when the first of them has to be looked at, or before that, in seconds of Trio's clock.
    """

    __slots__ = ("_infer", "_limits", "_out", "_owner", "arriving", "begun", "memory", "next_deadline")

    def __init__(
        self, infer: DirectInfer | None, limits: ConnectionLimits, out: Outgoing, memory: ReceiveMemory, owner: Owner
    ) -> None:
        self._infer = infer
        self._limits = limits
        self._out = out
        self._owner = owner
        self.memory = memory
        self.arriving: dict[int, Incoming] = {}
        self.begun: dict[int, DirectCall] = {}
        self.next_deadline = math.inf

    @property
    def peer(self) -> str:
        """Implements `direct_infer.ReplySink`."""
        return self._out.peer

    def __len__(self) -> int:
        return len(self.arriving) + len(self.begun)

    def terminate(self) -> None:
        """The connection is lost: nothing more can be sent."""
        for stream_id in [*self.arriving, *self.begun]:
            self.drop(stream_id)

    def detach(self) -> None:
        """Behind `terminate`: the owner hears nothing more."""
        self._owner = _NOBODY

    def drop(self, stream_id: int) -> bool:
        """The client has reset the call; False where there is none."""
        incoming = self.arriving.pop(stream_id, None)
        call = self.begun.pop(stream_id, None)
        if incoming is not None:
            incoming.close()
        elif call is not None:
            self._give_up(call)
        return incoming is not None or call is not None

    def end_late(self, now: float) -> None:
        """End the calls without a task whose deadline has passed; a task does it where the message has not come."""
        if now < self.next_deadline:
            return
        late = [call for call in self.begun.values() if call.deadline <= now]
        for call in late:
            del self.begun[call.id]
            self._note_failure(call, DeadlineExceeded(TOO_LATE))
            self._give_up(call)
            ending = (*RESPONSE_HEADERS, *deadline_exceeded())
            self._out.end_stream(call.id, ending, peer_has_ended=True, request_id=call.name())
        for incoming in [each for each in self.arriving.values() if _gathers_until(each) <= now]:
            self._run_in_task(incoming)
        times = [call.deadline for call in self.begun.values()]
        times += [_gathers_until(incoming) for incoming in self.arriving.values()]
        self.next_deadline = min(times, default=math.inf)
        if late:
            self._out.flush()
            self._owner.note_end()

    def await_message(self, incoming: Incoming) -> None:
        """Expect the message of a call, which may be all that it needs."""
        self.arriving[incoming.id] = incoming
        incoming.note_progress()
        self._look_at(_gathers_until(incoming))

    def begin(self, event: events.RequestReceived, data: Buffer) -> bool:
        """Whether a call that came whole could be begun without a task."""
        size = len(data)
        message = whole_message(data, self._limits.max_message_size)
        if message is None:
            return False
        head: RequestHead = event.request
        deadline = math.inf if head.timeout is None else deadline_of(head)
        held = CALL_MEMORY + size
        if not self.memory.take(held) or not self._submit(event.stream_id, head, message, size, deadline):
            self.memory.give(held)
            return False
        self._out.taken += event.flow_controlled_length
        return True

    def _submit(
        self, stream_id: int, head: RequestHead, message: bytes | memoryview, size: int, deadline: float
    ) -> bool:
        assert self._infer is not None
        call = self._infer.begin(self, stream_id, head, message, size, deadline)
        if call is None:
            return False
        self.begun[stream_id] = call
        if deadline < self.next_deadline:
            self._look_at(deadline)
        return True

    def _look_at(self, time: float) -> None:
        if time < self.next_deadline:
            self.next_deadline = time
            self._owner.note_deadline()

    def gather(self, incoming: Incoming) -> None:
        """More of a message has arrived."""
        if not incoming.has_ended and not incoming.is_decided:
            incoming.acknowledge_in_burst()
            incoming.note_progress()
            return
        message = incoming.whole() if incoming.has_ended else None
        size = incoming.message_size
        if message is None or not self._submit(incoming.id, incoming.head, message, size, incoming.deadline):
            self._run_in_task(incoming)
            return
        del self.arriving[incoming.id]
        incoming.let_go()

    def _run_in_task(self, incoming: Incoming) -> None:
        del self.arriving[incoming.id]
        self._owner.run_in_task(incoming)

    def answer(self, call: DirectCall) -> None:
        """Implements `direct_infer.ReplySink`."""
        infer = self._infer
        assert infer is not None
        if self.begun.pop(call.id, None) is None:
            infer.close(call)  # its begin has failed behind its submission, or it was given up
            return
        try:
            message = infer.encode(call)
        except Exception as error:
            self._note_failure(call, error)
            ending = error_response(error, call.head.method)
            self._out.end_stream(call.id, ending, peer_has_ended=True, request_id=call.name())
            self._out.write_after(infer.replies)
        else:
            if message is None:
                call.let_go().end()
                stream = self._finish_in_task(call, partial(infer.send, call))
                stream.on_close = partial(infer.close, call)
                return
            # Where that is false its client has to make room first.
            if not self._out.send_response(call.id, message, infer.replies, call.request_id or call.name()):
                infer.close(call)
                self._finish_in_task(call, partial(_send, message))
                return
        infer.close(call)  # while the answer is on its way, if it was the last one
        if not self.begun:
            self._owner.note_end()

    def fail_answer(self, call: DirectCall, error: Exception) -> None:
        """Implements `direct_infer.ReplySink`."""
        self.begun.pop(call.id, None)
        self._note_failure(call, error)
        try:
            ending = error_response(Internal("internal error"), call.head.method)
            self._out.fail_stream(call.id, ending, call.name())
        finally:
            if self._infer is not None:
                self._infer.close(call)
            self._owner.note_end()

    def _finish_in_task(self, call: DirectCall, handle: Callable[[Stream], Awaitable[None]]) -> Stream:
        """Send what is left of a reply, in a task."""
        incoming = Incoming(self._out, call.id, call.head, self._limits, self.memory)
        incoming.deadline = call.deadline
        incoming.has_ended = True
        stream = self._owner.run_in_task(incoming)
        stream.handle = handle
        stream.origin.request_id = call.name()
        stream.is_unlogged = True  # the call has its line
        stream.describe = partial(describe_pending, call)
        return stream

    def _note_failure(self, call: DirectCall, error: Exception) -> None:
        if self._infer is not None:
            self._infer.note_failure(call, error)

    def _give_up(self, call: DirectCall) -> None:
        assert self._infer is not None
        self._infer.give_up(call)


class _Nobody:
    """The owner of calls whose connection has ended."""

    def run_in_task(self, incoming: Incoming) -> Stream:
        raise AssertionError("a call goes on behind the end of its connection")

    def note_end(self) -> None:
        pass

    def note_deadline(self) -> None:
        pass


_NOBODY = _Nobody()


def _gathers_until(incoming: Incoming) -> float:
    """When a task has to take over the call, whatever has arrived of it."""
    return min(incoming.progress_by, incoming.deadline)


async def _send(message: Sequence[Buffer], stream: Stream) -> None:
    await stream.send_message(message)


def deadline_exceeded() -> Sequence[Header]:
    """The trailers of a call whose deadline has passed."""
    return trailers(Status.DEADLINE_EXCEEDED, TOO_LATE)
