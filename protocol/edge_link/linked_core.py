"""Linked core: the core as the edges of another process see it. Implements `protocol.core.InferenceCore`.

    edges -> [linked core] -> socket, shared memory -> link server -> core

Requests that are submitted within one burst of the poller leave in one frame. What cannot cross is refused with
`NotLinked`; an edge asks `can_take` first, and has the core's own edges answer what this does not carry.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from contextlib import suppress
from typing import Any

import trio

from protocol.access.key_table import KeyTable
from protocol.core import ReplyChannel, Respond
from protocol.edge_link.asked import Asked, LinkedSubmission, PendingCall, PendingStream
from protocol.edge_link.charges import decode_left
from protocol.edge_link.edge_traces import EdgeTrace
from protocol.edge_link.errors import NotLinked
from protocol.edge_link.facts import ModelFacts
from protocol.edge_link.frames import MOST_BYTES, BrokenFrame, Frame, FrameReader, take_records
from protocol.edge_link.generation import SeenGeneration
from protocol.edge_link.linked_operations import LinkedOperations
from protocol.edge_link.operations import ADMIT, CALLS, KEY_TABLE, QUERIES, decode_result, encode_operation
from protocol.edge_link.queries import Queries
from protocol.edge_link.records import (
    ANSWER,
    ANSWERS,
    END,
    ERROR,
    EVENTS,
    FINAL,
    FULL_FRAME,
    HELLO,
    INLINE,
    LEFT,
    RELEASE,
    RETURN,
    STAMPS,
    STREAM,
    TEMPLATE,
    TRACED,
    UNSENT,
    USED,
)
from protocol.edge_link.requests import RequestWriter, can_cross
from protocol.edge_link.segments import ReadSegment, WrittenSegment
from protocol.edge_link.templates import ReceivedTemplates
from protocol.edge_link.texts import (
    Hello,
    ResponseExtras,
    StampsText,
    TraceText,
    UnsentTraceText,
    UsedText,
    decode_error,
    decode_text,
    replay,
)
from protocol.edge_link.wire import Wire
from protocol.errors import QuotaExceeded, ServerError, Unavailable
from protocol.failures import CallbackFailures
from protocol.log.access_record import AccessRecord
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse, Tensor
from protocol.quotas.told import ToldCharge
from protocol.reactor.drivers import the_poller
from protocol.sync.wakeup import Wakeup

_MOST_DESCRIPTORS = 4
_HELLO_BYTES = 1 << 12
# How long the core may take to greet.
_GREETING_SECONDS = 60.0
_TRIM_SECONDS = 10.0
# For how long a core may read nothing of what waits for it.
_STALL_SECONDS = 60.0


class LinkedCore(LinkedOperations):
    """`control` is the edge process's end of the socket pair, which this owns from now on."""

    def __init__(self, control: socket.socket, *, failures: CallbackFailures | None = None) -> None:
        self._failures = failures or CallbackFailures()
        control.setblocking(False)
        self._wire = Wire(
            control,
            self._take,
            name="core",
            unsent_bytes=MOST_BYTES,  # the edges bound the memory of requests
            stall_seconds=_STALL_SECONDS,
            failures=self._failures,
        )
        self._handlers = {
            TEMPLATE: self._template,
            ANSWERS: self._take_answers,
            ANSWER: self._take_answer,
            EVENTS: self._take_events,
            TRACED: self._take_traced,
            LEFT: self._take_left,
            ERROR: self._take_error,
            END: self._take_end,
            RETURN: self._take_return,
            RELEASE: self._take_release,
        }
        self._templates = ReceivedTemplates()
        self._pending: dict[int, Asked] = {}
        self._last_number = 0
        self._arrived = Wakeup()
        self._ended_views: deque[int] = deque()  # places that nobody reads any more; other threads add to it
        self._is_up = False
        self._seen: SeenGeneration | None = None
        self._sent_in = 0

    @property
    def problem(self) -> str:
        """Why the link has ended, where the core has not just gone."""
        return self._wire.problem

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started once the core has answered. Returns when the core is gone: all requests are answered with Unavailable
        then, and the process is to end."""
        try:
            with trio.fail_after(_GREETING_SECONDS):
                hello, descriptors = await self._greeted()
        except (BrokenFrame, OSError, trio.TooSlowError) as error:
            self._wire.end(f"it did not greet: {error}")
            self._wire.close()
            return
        self._poller = the_poller()
        self._token = trio.lowlevel.current_trio_token()
        queries = socket.socket(fileno=descriptors[2])
        try:
            self._outputs = ReadSegment(descriptors[1], hello.output_bytes, self._view_ended)
            self._half_of_outputs = hello.output_bytes // 2
            inputs = WrittenSegment(descriptors[0], hello.input_bytes)
            self._requests = RequestWriter(inputs)
            self._seen = seen = SeenGeneration(descriptors[3]) if hello.has_generation else None
        finally:
            for descriptor in (*descriptors[:2], *descriptors[3:]):
                os.close(descriptor)
        self.queries = Queries(queries, seen, hello.query_seconds)
        self.facts = ModelFacts(self.queries, self._call)
        self._is_up = True
        try:
            async with trio.open_nursery() as nursery:
                with self._poller.calling_last(self.flush):
                    nursery.start_soon(self._send_later)
                    nursery.start_soon(self._trim, inputs)
                    task_status.started()
                    await self._wire.run()
                nursery.cancel_scope.cancel()
        finally:
            self._is_up = False
            self._end_all()
            self._wire.close()
            self.queries.close()
            self._outputs.close()
            inputs.close()

    async def _greeted(self) -> tuple[Hello, list[int]]:
        """The first frame, and what came with it."""
        control = self._wire.socket
        await trio.lowlevel.wait_readable(control)
        data, descriptors, _, _ = socket.recv_fds(control, _HELLO_BYTES, _MOST_DESCRIPTORS)
        try:
            frames = list(FrameReader(_HELLO_BYTES).take(data))
            if len(frames) != 1:
                raise BrokenFrame(f"it began with {len(frames)} frames of {len(data)} bytes")
            kind, size = frames[0].take(2)
            hello = decode_text(frames[0].take_text(size), Hello)
            if kind != HELLO or len(descriptors) != 3 + hello.has_generation:
                raise BrokenFrame(f"it began with a record of kind {kind} and {len(descriptors)} descriptors")
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return hello, descriptors

    # Inference

    def can_take(self, request: InferenceRequest) -> bool:
        """Whether the link carries this request; others are to go to the core's own edges. Not carried are requests
        with tensors on devices or in shared memory of clients, observed calls of generative models, and those with a
        trace that is no `EdgeTrace`."""
        return can_cross(request)

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, *, later: bool = False) -> LinkedSubmission:
        number = self._last_number = self._last_number + 1
        submission = LinkedSubmission(request, trio.current_time(), number, reply_to, self)
        if (refusal := self._write(number, request)) is not None:
            reply_to.send_nowait(refusal)
            return submission
        self._pending[number] = submission
        if not later:
            self._send_soon()
        elif self._requests.frame_size > FULL_FRAME:
            self.flush()
        return submission

    def _write(self, number: int, request: InferenceRequest, flags: int = 0) -> ServerError | None:
        """Write a request; the reason where that cannot be done."""
        if not self._is_up:
            return _gone()
        if not can_cross(request):
            return NotLinked(f"the request to model '{request.model_name}' cannot cross to the core's process")
        try:
            self._requests.write(number, request, flags)
        except Exception as error:
            self._failures.note("edge link", error, f"a request to model '{request.model_name}' could not be sent")
            self._wire.end("a request could not be sent")  # how much of it was written is unknown
            return _gone()
        return None

    def flush(self) -> None:
        """Send what was written."""
        if not self._is_up:
            return
        requests = self._requests
        while self._ended_views:
            place = self._ended_views.popleft()
            self._outputs.settle(place)
            requests.write_release(place)
        if requests.has_written:
            self._wire.send(*requests.take())
        self._sent_in = self._poller.burst

    def abandon(self, number: int) -> None:
        """No answer to this is wanted any more."""
        if self._pending.pop(number, None) is not None and self._is_up:
            self._requests.write_cancel(number)
            self._send_soon()

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        slot = PendingCall()
        submission = self.submit(request, slot)
        try:
            reply = await slot.reply()
        except BaseException:
            submission.give_up()
            raise
        submission.end()
        if isinstance(reply, ServerError):
            raise reply
        assert isinstance(reply, InferenceResponse)
        return reply

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        number = self._last_number = self._last_number + 1
        if (refusal := self._write(number, request, STREAM)) is not None:
            raise refusal
        stream = self._pending[number] = PendingStream(request, respond)
        self._send_soon()
        try:
            while (response := await stream.next()) is not None:
                await respond(response)
                self._credit(number, stream, response)
        finally:
            self.abandon(number)
        assert stream.outcome is not None
        if isinstance(stream.outcome, ServerError):
            raise stream.outcome
        return stream.outcome

    def _credit(self, number: int, stream: PendingStream, response: InferenceResponse) -> None:
        """A response was passed on; the core is told of several at a time."""
        if stream.note_passed(response) and number in self._pending and self._is_up:
            self._requests.write_credit(number, *stream.take_passed())
            self._send_soon()

    def cancel(self, name: str, request_id: str, version: int = LATEST_VERSION) -> int:
        self.flush()
        return int(self._query("cancel", name, request_id, version))

    # What the core says. All of it is valid, or BrokenFrame.

    def _take(self, frame: Frame) -> None:
        take_records(frame, self._handlers)

    def _template(self, frame: Frame) -> None:
        self._templates.receive(frame)

    def _take_answers(self, frame: Frame) -> None:
        number, count = frame.take(2)
        template = self._templates[number]
        size = template.size
        numbers = frame.take(count)
        data = frame.take_data(count * size)
        if not template.is_fixed:
            raise BrokenFrame("its template of plain answers has sizes that vary")
        pending, places = self._pending, template.tensors
        start = 0
        for number in numbers:
            found = pending.get(number)
            if type(found) is LinkedSubmission:
                del pending[number]
                outputs = []
                for name, datatype, shape, begin, end in places:
                    outputs.append(Tensor(name, datatype, shape, data[start + begin : start + end]))
                own_id = found.request.id
                found.reply_to.send_nowait(
                    InferenceResponse(template.model_name, template.model_version, outputs, own_id)
                )
            elif found is not None:
                raise BrokenFrame(f"it answers {number}, which is no plain request")
            start += size

    def _take_answer(self, frame: Frame) -> None:
        template_number, number, flags, extras_size, place, size = frame.take(6)
        template = self._templates[template_number]
        sizes = frame.take(template.count_varying)
        text = frame.take_text(extras_size)
        if place == INLINE:
            data = frame.take_data(size)
        else:
            data = self._outputs.lend(place, size)
            if self._outputs.lent_bytes > self._half_of_outputs:  # a client that reads slowly must not hold it
                data = memoryview(bytes(data))
        found = self._pending.get(number)
        outputs = template.views(data, sizes)
        if found is None:  # given up
            return
        response = InferenceResponse(
            template.model_name,
            template.model_version,
            outputs,
            found.request.id,
            is_final=bool(flags & FINAL),
        )
        if extras_size:
            extras = decode_text(text, ResponseExtras)
            response.id, response.parameters = extras.id, extras.parameters
        if isinstance(found, PendingStream) and flags & STREAM:
            if found.take(response):
                self._credit(number, found, response)
        elif isinstance(found, LinkedSubmission) and not flags & STREAM:
            del self._pending[number]
            found.reply_to.send_nowait(response)
        else:
            raise BrokenFrame(f"it answers {number}, which asked for something else")

    def _take_events(self, frame: Frame) -> None:
        number, size = frame.take(2)
        text = frame.take_text(size)
        found = self._pending.get(number)
        record = None if found is None else found.request.trace
        if isinstance(record, AccessRecord):
            own, record.trace = record.trace, None  # in which the core itself records
            try:
                replay(text, record)
            finally:
                record.trace = own

    def _take_traced(self, frame: Frame) -> None:
        (number,) = frame.take(1)
        found = self._pending.get(number)
        trace = None if found is None else found.request.trace
        if isinstance(trace, AccessRecord):
            trace = trace.trace
        if isinstance(trace, EdgeTrace):
            trace.is_taken = True
        else:  # its client has left
            self.tell_stamps(number, [])

    def _take_left(self, frame: Frame) -> None:
        number, size = frame.take(2)
        text = frame.take_text(size)
        found = self._pending.get(number)
        if found is not None and (charge := found.request.charge) is not None:
            charge.held = decode_left(text, charge.account.now())

    def _take_error(self, frame: Frame) -> None:
        number, size = frame.take(2)
        error = decode_error(frame.take_text(size))
        if (found := self._pending.pop(number, None)) is not None:
            if isinstance(error, QuotaExceeded) and isinstance(found.request.charge, ToldCharge):
                found.request.charge.refuse(error)
            found.fail(error)

    def _take_end(self, frame: Frame) -> None:
        number, is_final = frame.take(2)
        found = self._pending.pop(number, None)
        if isinstance(found, PendingStream):
            found.end(bool(is_final))
        elif found is not None:
            raise BrokenFrame(f"it ends {number}, which is no stream")

    def _take_return(self, frame: Frame) -> None:
        number, size = frame.take(2)
        text = frame.take_text(size)
        found = self._pending.pop(number, None)
        if isinstance(found, PendingCall):
            found.send_nowait(decode_result(text, CALLS[found.name]))
        elif found is not None:
            raise BrokenFrame(f"it answers {number}, which is no call")

    def _take_release(self, frame: Frame) -> None:
        (place,) = frame.take(1)
        self._requests.segment.give(place)

    # Tasks, and the end

    def _send_soon(self) -> None:
        burst = self._poller.burst
        if not burst or burst == self._sent_in:  # else the end of the burst is to come
            self._arrived.wake()

    def _view_ended(self, place: int) -> None:
        """Nobody holds a part of this block of the outputs any more. Called in any thread."""
        self._ended_views.append(place)
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._arrived.wake, idempotent=True)

    async def _send_later(self) -> None:
        while True:
            if not (self._requests.has_written or self._ended_views):
                await self._arrived.wait()
            self.flush()
            await trio.lowlevel.checkpoint()

    async def _trim(self, inputs: WrittenSegment) -> None:
        """Give memory that was not used for a while back to the system."""
        while True:
            await trio.sleep(_TRIM_SECONDS)
            while inputs.trim():
                await trio.lowlevel.checkpoint()

    def _end_all(self) -> None:
        """Nothing is answered any more."""
        pending, self._pending = self._pending, {}
        for each in pending.values():
            with self._failures.noted("edge link", "what waits for an answer could not be ended"):
                each.fail(_gone())

    # Queries and calls

    @property
    def keys_number(self) -> int:
        """Which keys of clients are in force in the core, as a number that grows."""
        return self._seen.keys() if self._is_up and self._seen is not None else -1

    @property
    def is_traced(self) -> bool:
        """Whether the core may have to trace requests."""
        return not self._is_up or self._seen is None or self._seen.is_traced()

    @property
    def follows_context(self) -> bool:
        """Whether it wants to see the context that clients give."""
        return not self._is_up or self._seen is None or self._seen.follows_context()

    async def key_table(self) -> KeyTable | None:
        """The keys of clients; None where there are none. Raises Unavailable where the core is gone."""
        found: KeyTable | None = await self._call(KEY_TABLE)
        return found

    def tell_used(self, key: str, model: str, requests: int, size: float) -> None:
        """Implements `protocol.quotas.told.Desk`."""
        if self._is_up:
            self._requests.write_text(USED, UsedText(key, model, requests, size))
            self._send_soon()

    def tell_stamps(self, number: int, stamps: list[tuple[str, int]]) -> None:
        """Implements `edge_traces.TellsTraces`."""
        if self._is_up:
            self._requests.write_text(STAMPS, StampsText(number, stamps))
            self._send_soon()

    def tell_trace(self, model: str, text: TraceText) -> None:
        """Implements `edge_traces.TellsTraces`."""
        if self._is_up:
            self._requests.write_text(UNSENT, UnsentTraceText(model, text))
            self._send_soon()

    async def admit(self, key: str, model: str, size: float) -> None:
        """Implements `protocol.quotas.told.Desk`."""
        await self._call(ADMIT, key, model, size)

    def _query(self, name: str, *arguments: Any) -> Any:
        if not self._is_up:
            raise _gone()
        if self._poller.burst and QUERIES[name].is_kept and not self.queries.knows(name, arguments):
            raise NotLinked(f"{name}{arguments} is not known, and nobody may wait for it now")
        return self.queries.ask(name, arguments)

    async def _call(self, name: str, *arguments: Any) -> Any:
        if not self._is_up:
            raise _gone()
        number = self._last_number = self._last_number + 1
        call = self._pending[number] = PendingCall(name)
        self._requests.write_call(number, encode_operation(name, arguments))
        self._send_soon()
        try:
            reply = await call.reply()
        finally:
            self.abandon(number)
        if isinstance(reply, ServerError):
            raise reply
        return reply


def _gone() -> Unavailable:
    return Unavailable("Server exiting")
