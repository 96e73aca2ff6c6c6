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
from protocol.edge_link.errors import NotLinked
from protocol.edge_link.facts import ModelFacts
from protocol.edge_link.frames import MOST_BYTES, BrokenFrame, Frame, FrameReader
from protocol.edge_link.generation import SeenGeneration
from protocol.edge_link.linked_operations import LinkedOperations
from protocol.edge_link.linked_texts import LinkedTexts
from protocol.edge_link.live_texts import LiveTexts
from protocol.edge_link.observed import ToldGenAi
from protocol.edge_link.operations import ADMIT, KEY_TABLE, QUERIES, encode_operation
from protocol.edge_link.queries import Queries
from protocol.edge_link.records import CHARGED, FULL_FRAME, HELLO, OBSERVED, STAMPS, STREAM, UNSENT, USED
from protocol.edge_link.replies import ReplyReader
from protocol.edge_link.requests import Copied, RequestWriter, can_cross
from protocol.edge_link.segments import ReadSegment, WrittenSegment
from protocol.edge_link.texts import ChargedText, Hello, StampsText, TraceText, UnsentTraceText, UsedText, decode_text
from protocol.edge_link.wire import Wire
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable
from protocol.failures import CallbackFailures
from protocol.gen_ai import EndedCall, GenAi
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse
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
        self._pending: dict[int, Asked] = {}
        self._last_number = 0
        self._arrived = Wakeup()
        self._ended_views: deque[int] = deque()  # places that nobody reads any more; other threads add to it
        self._is_up = False
        self._seen: SeenGeneration | None = None
        self._gen_ai: GenAi | None = None
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
            self._replies = ReplyReader(self._pending, self._outputs, hello.output_bytes // 2, self)
            inputs = WrittenSegment(descriptors[0], hello.input_bytes)
            self._requests = RequestWriter(inputs, self._put_aside)
            self._seen = seen = SeenGeneration(descriptors[3]) if hello.has_generation else None
        finally:
            for descriptor in (*descriptors[:2], *descriptors[3:]):
                os.close(descriptor)
        self._gen_ai = ToldGenAi(self) if hello.observes_calls else None
        self.queries = Queries(queries, seen, hello.query_seconds)
        self.facts = ModelFacts(self.queries, self._call)
        self.texts = LinkedTexts(self.queries, self.facts, self._call, LiveTexts(self._failures))
        self._is_up = True
        try:
            async with trio.open_nursery() as nursery:
                self._tasks = nursery
                with self._poller.calling_last(self.flush):
                    nursery.start_soon(self._send_later)
                    nursery.start_soon(self._trim, inputs)
                    await nursery.start(self.texts.run)
                    task_status.started()
                    await self._wire.run()
                nursery.cancel_scope.cancel()
        finally:
            self.flush()  # the last that the core is to be told
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
        with tensors on devices or in shared memory of clients, those of models, and those with a trace that is no
        `EdgeTrace`."""
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

    def _write(
        self, number: int, request: InferenceRequest, flags: int = 0, copied_to: int | None = None
    ) -> ServerError | None:
        """Write a request; the reason where that cannot be done."""
        if not self._is_up:
            return _gone()
        if not can_cross(request):
            return NotLinked(f"the request to model '{request.model_name}' cannot cross to the core's process")
        try:
            self._requests.write(number, request, flags, copied_to)
        except InvalidArgument as refusal:
            return refusal
        except Exception as error:
            self._failures.note("edge link", error, f"a request to model '{request.model_name}' could not be sent")
            self._wire.end("a request could not be sent")  # how much of it was written is unknown
            return _gone()
        return None

    def _put_aside(self, copied: Copied) -> None:
        self._tasks.start_soon(self._send_copied, copied)

    async def _send_copied(self, copied: Copied) -> None:
        """Copy the tensors of a request in a thread, and then send it, if it was not given up meanwhile."""
        segment = self._requests.segment
        refusal: ServerError | None = None
        try:
            await trio.to_thread.run_sync(segment.write, copied.place, copied.parts)
        except Exception as error:  # the system may have no thread left
            self._failures.note("edge link", error, f"a request to model '{copied.request.model_name}' was not copied")
            refusal = Internal(f"the request to model '{copied.request.model_name}' could not be passed on")
        asked = self._pending.get(copied.number)
        if asked is None:
            segment.give(copied.place)
            return
        refusal = refusal or self._write(copied.number, copied.request, copied.flags, copied.place)
        if refusal is None:
            self._send_soon()
            return
        segment.give(copied.place)
        del self._pending[copied.number]
        with self._failures.noted("edge link", "a request could not be refused"):
            asked.fail(refusal)

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
        found = self._pending.pop(number, None)
        if found is not None and self._is_up:
            if isinstance(charge := found.request.charge, ToldCharge):
                charge.is_cut = True
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
            while (found := await stream.next()) is not None:
                response, size = found
                await respond(response)
                self.credit(number, stream, size)
                await trio.lowlevel.checkpoint_if_cancelled()  # who wants no more has cancelled it, and others are here
        finally:
            self.abandon(number)
        assert stream.outcome is not None
        if isinstance(stream.outcome, ServerError):
            raise stream.outcome
        return stream.outcome

    def credit(self, number: int, stream: PendingStream, size: int) -> None:
        """Implements `replies.TellsCore`: the core is told of several at a time."""
        if stream.note_passed(size) and number in self._pending and self._is_up:
            self._requests.write_credit(number, *stream.take_passed())
            self._send_soon()

    def release(self, place: int) -> None:
        """Implements `replies.TellsCore`."""
        self._requests.segment.give(place)

    def cancel(self, name: str, request_id: str, version: int = LATEST_VERSION) -> int:
        self.flush()
        return int(self._query("cancel", name, request_id, version))

    # Tasks, and the end

    def _take(self, frame: Frame) -> None:
        self._replies.take(frame)

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
        pending = list(self._pending.values())
        self._pending.clear()
        for each in pending:
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

    @property
    def gen_ai(self) -> GenAi | None:
        """Where calls of generative models are recorded, if they are observed."""
        return self._gen_ai

    def tell_used(self, key: str, model: str, requests: int, size: float, tokens: float) -> None:
        """Implements `protocol.quotas.told.Desk`."""
        self._tell(USED, UsedText(key, model, requests, size, tokens))

    def tell_charged(self, number: int, tokens: float, counted: float | None) -> None:
        """Implements `protocol.quotas.told.Desk`."""
        self._tell(CHARGED, ChargedText(tokens, counted), number)

    def tell_stamps(self, text: StampsText) -> None:
        """Implements `edge_traces.TellsTraces`."""
        self._tell(STAMPS, text)

    def tell_trace(self, model: str, text: TraceText) -> None:
        """Implements `edge_traces.TellsTraces`."""
        self._tell(UNSENT, UnsentTraceText(model, text))

    def tell_call(self, call: EndedCall) -> None:
        """Implements `observed.TellsCalls`."""
        self._tell(OBSERVED, call)

    def _tell(self, kind: int, text: object, *numbers: int) -> None:
        """Whatever it is, it must not fail who tells it."""
        if self._is_up:
            with self._failures.noted("edge link", "what the core was to be told could not be sent"):
                self._requests.write_text(kind, text, *numbers)
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
