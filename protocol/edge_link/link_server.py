"""Link server: serves one edge process where the core runs.

    edge process -> socket -> [link server] -> core … actor -> [link server] -> socket -> edge process

All requests of a frame are submitted before the core is told to begin (`flush`), so that they share batches; answers
that come within one burst of the poller leave in one frame at its end. Requests take no task; streams, operations that
take a while, and copies of large answers have one each.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio

from protocol.core import InferenceCore
from protocol.edge_link.answers import AnswerWriter
from protocol.edge_link.frames import Burst, Frame, take_records
from protocol.edge_link.generation import Generation
from protocol.edge_link.keys import TellingKeys
from protocol.edge_link.limits import LinkLimits
from protocol.edge_link.link_calls import LinkCalls
from protocol.edge_link.link_requests import LinkRequests
from protocol.edge_link.link_told import LinkTold
from protocol.edge_link.link_traces import LinkTraces
from protocol.edge_link.records import CALL, HELLO, RELEASE, STREAM
from protocol.edge_link.segments import ReadSegment, WrittenSegment, make_segment
from protocol.edge_link.served import LinkedRequest, LinkedStream, response_size
from protocol.edge_link.texts import Hello, encode_text
from protocol.edge_link.wire import Wire
from protocol.failures import CallbackFailures
from protocol.gen_ai import GenAi
from protocol.messages import InferenceResponse
from protocol.reactor.drivers import the_poller
from protocol.server_settings import TraceControl
from protocol.sync.wakeup import WaitingTasks, Wakeup

# How long an edge waits for the answer to a query before it gives up.
QUERY_SECONDS = 5.0
# How often unused memory is looked for.
_TRIM_SECONDS = 10.0


class LinkServer:
    """One for each edge process; `control` is its end of the socket pair, which it owns from now on.

    `generation` is the core's, which moves it at every change of its models; without one, edges keep nothing. `keys`
    are those of clients, if the server has any. `tracing` samples requests for traces; calls of generative models are
    recorded by `gen_ai`, if they are observed.
    """

    def __init__(
        self,
        core: InferenceCore,
        control: socket.socket,
        *,
        limits: LinkLimits = LinkLimits(),  # noqa: B008 (frozen)
        generation: Generation | None = None,
        keys: TellingKeys | None = None,
        tracing: TraceControl | None = None,
        gen_ai: GenAi | None = None,
        failures: CallbackFailures | None = None,
        name: str = "edge",
    ) -> None:
        self._core = core
        self._limits = limits
        self._generation = generation
        self._failures = failures or CallbackFailures()
        self._observes = gen_ai is not None
        self._name = name
        self._sent_in = 0  # the burst at whose end everything was sent
        self._arrived = Wakeup()
        self._calls = LinkCalls(core, keys, self._failures, name, self.wake)
        traces = LinkTraces(tracing)
        self._requests = LinkRequests(core, keys, traces, self._calls, self._failures, name, self)
        told = LinkTold(keys, self._requests.charges, traces, gen_ai)
        self._handlers: dict[int, Callable[[Frame], None]] = {
            RELEASE: self._release,
            CALL: self._call,
            **self._requests.handlers,
            **told.handlers,
        }
        self._wire = self._made_wire(control, self._take)
        self._has_room = WaitingTasks()  # in the segment of outputs
        self._ended_views: deque[int] = deque()  # places that nobody reads any more; other threads add to it

    @property
    def problem(self) -> str:
        """Why the link has ended, where the edge has not just gone."""
        return self._wire.problem

    @property
    def answered(self) -> int:
        """Requests that were answered so far, but for streams and calls."""
        return self._answers.answered

    @property
    def in_flight(self) -> int:
        """Requests, streams and calls that the edge waits for."""
        return len(self._requests.pending) + len(self._requests.streams) + len(self._calls.scopes)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the edge until it is gone, or sends what is invalid. Then, as when cancelled, all of its requests are
        given up and its memory is unmapped. Does not raise because of the edge."""
        self._poller = the_poller()
        self._token = trio.lowlevel.current_trio_token()
        limits = self._limits
        queries, theirs = socket.socketpair()
        descriptors: list[int] = []
        try:
            descriptors += map(make_segment, (limits.input_bytes, limits.output_bytes))
            self._inputs = ReadSegment(descriptors[0], limits.input_bytes, self._view_ended)
            outputs = WrittenSegment(descriptors[1], limits.output_bytes)
            self._answers = AnswerWriter(outputs, self._put_aside, self._failures)
            self._greet([*descriptors, theirs.fileno()])
        finally:
            theirs.close()
            for descriptor in descriptors:
                os.close(descriptor)
        asked = self.queries = self._made_wire(queries, self._query)
        try:
            async with trio.open_nursery() as nursery:
                self._tasks = nursery
                self._requests.begin(self._inputs, self._answers, nursery)
                with self._poller.calling_last(self._send):
                    nursery.start_soon(asked.run)
                    nursery.start_soon(self._send_later)
                    nursery.start_soon(self._trim, outputs)
                    task_status.started()
                    await self._wire.run()
                nursery.cancel_scope.cancel()
        finally:
            self._requests.give_up()
            self._answers.ready.clear()
            self._wire.close()
            asked.close()
            self._inputs.close()
            outputs.close()

    def _made_wire(self, control: socket.socket, take: Callable[[Frame], None]) -> Wire:
        return Wire(
            control,
            take,
            name=self._name,
            unsent_bytes=self._limits.unsent_bytes,
            stall_seconds=self._limits.stall_seconds,
            failures=self._failures,
        )

    def _greet(self, descriptors: list[int]) -> None:
        """The first frame; there is room for it in a socket that nothing was written to. Raises OSError where the edge
        is gone already: then `run` ends with the first read."""
        has_generation = self._generation is not None
        if self._generation is not None:
            descriptors = [*descriptors, self._generation.descriptor]
        limits = self._limits
        burst = Burst()
        hello = Hello(limits.input_bytes, limits.output_bytes, has_generation, QUERY_SECONDS, self._observes)
        burst.numbers += HELLO, burst.add_text(encode_text(hello))
        try:
            socket.send_fds(self._wire.socket, [b"".join(burst.take())], descriptors)
        except OSError as error:
            self._wire.end(f"it could not be greeted: {error}")

    # What the edge says. All of it is valid, or BrokenFrame.

    def _take(self, frame: Frame) -> None:
        take_records(frame, self._handlers)

    def _release(self, frame: Frame) -> None:
        (place,) = frame.take(1)
        self._answers.segment.give(place)
        self._has_room.wake_all()

    def _call(self, frame: Frame) -> None:
        number, size = frame.take(2)
        text = frame.take_text(size)
        self._requests.check_new(number)
        self._calls.begin(number, text, self._answers, self._tasks)

    def _query(self, frame: Frame) -> None:
        """By the second socket. What was said by the first before that is heard before that."""
        self._wire.read()
        burst = self._calls.answer(frame)
        size = burst.size
        self.queries.send(burst.take(), size)

    # What the edge is told

    def wake(self) -> None:
        """Implements `link_requests.SendsAnswers`, as the next three do."""
        self._arrived.wake()

    def put(self, request: LinkedRequest) -> None:
        ready = self._answers.ready
        if not ready:
            self._send_soon()
        ready.append(request)

    def put_streamed(self, stream: LinkedStream, response: InferenceResponse) -> int:
        answers = self._answers
        if not stream.has_answered:
            stream.has_answered = True
            answers.write_first(stream)
        size = answers.put_streamed(stream, response)
        if size >= 0:
            self._send_soon()
        return size

    def _send_soon(self) -> None:
        """Have what is put now sent: at the end of the poller's burst, or by the task if that has been."""
        burst = self._poller.burst
        if not burst or burst == self._sent_in:
            self._arrived.wake()

    async def place_streamed(self, stream: LinkedStream, response: InferenceResponse) -> None:
        await self._send_large(stream.number, response, stream.own_id, STREAM)

    def _put_aside(self, number: int, response: InferenceResponse, own_id: str) -> None:
        self._tasks.start_soon(self._send_aside, number, response, own_id)

    async def _send_aside(self, number: int, response: InferenceResponse, own_id: str) -> None:
        try:
            await self._send_large(number, response, own_id)
        except Exception as error:
            self._answers.write_failed(number, response.model_name, error)
            self._arrived.wake()

    async def _send_large(self, number: int, response: InferenceResponse, own_id: str, flags: int = 0) -> None:
        """Wait for room in the segment, and copy the tensors in a thread."""
        segment, size = self._answers.segment, response_size(response)
        while (place := segment.take(size)) is None:
            with trio.move_on_after(self._limits.stall_seconds) as stalled:
                await self._has_room.wait()
            if stalled.cancelled_caught:
                self._wire.end(f"it has released no memory for {self._limits.stall_seconds:g} s")
                await trio.sleep_forever()  # until the link ends
        await trio.to_thread.run_sync(segment.write, place, [output.data for output in response.outputs])
        self._answers.write_response(number, response, own_id, flags, place)
        self._arrived.wake()

    def _view_ended(self, place: int) -> None:
        """Nobody holds a part of this block of the inputs any more. Called in any thread."""
        self._ended_views.append(place)
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._arrived.wake, idempotent=True)

    def _send(self) -> None:
        """At the end of each burst of the poller, and whenever something is ready outside of one."""
        self._core.flush()
        answers = self._answers
        if answers.ready:
            answers.write_ready(self._requests.pending)
        while self._ended_views:
            place = self._ended_views.popleft()
            self._inputs.settle(place)
            answers.write_release(place)
        if answers.has_written:
            self._wire.send(*answers.take())
        self._sent_in = self._poller.burst
        if answers.ready:  # put meanwhile
            self._arrived.wake()

    async def _send_later(self) -> None:
        while True:
            if not (self._answers.ready or self._answers.has_written or self._ended_views):
                await self._arrived.wait()
            self._send()
            await trio.lowlevel.checkpoint()

    async def _trim(self, outputs: WrittenSegment) -> None:
        """Give memory that was not used for a while back to the system."""
        while True:
            await trio.sleep(_TRIM_SECONDS)
            while outputs.trim():
                await trio.lowlevel.checkpoint()
