"""The batches of one worker: sent to it, and what comes back for them given to whom it belongs.

Flow: backend → [batches] → link → worker, and back the same way. A worker has one batch at a time, or as many as
`concurrency` says where its `execute` is a coroutine; a batch whose requests are answered by response sender leaves the
worker when `execute` returns, and may be answered much later. In all its inputs are never more than the worker's limit.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import trio

from backends.interface import BatchResult, BatchTiming, InstanceSpec, Rescheduled, Responder
from backends.python.arena import Segment
from backends.python.batch import (
    Executed,
    Outcome,
    column_of,
    decode_executed,
    decode_response,
    decode_responses,
    encode_batch,
)
from backends.python.channel import WorkerGone
from backends.python.heads import FailedHead, ResponseHead
from backends.python.link import WorkerLink
from backends.python.portions import InputRoom
from backends.python.reply_stream import ReplyStream
from backends.python.running_batch import RunningBatch
from backends.python.tensor_columns import TensorColumn
from backends.python.wire import BrokenFrame, Frame, decode_head, encode
from backends.python.worker.trioton_worker.frames import CANCEL, DROPPED, EXECUTED, FINAL, RESPONSE
from backends.services import Execution
from protocol.errors import Internal, ServerError
from protocol.messages import InferenceRequest, InferenceResponse

# Batches whose `execute` has returned, but which are not answered yet; with more the worker gets no further one.
MOST_LATE_BATCHES = 4096
# Copying this much takes less time than a thread does to begin.
_BLOCKING_SIZE = 1 << 22


class Batches:
    """`begin`, `run` and `run_decoupled` may be called by several tasks; batches reach the worker in the order of the
    calls.

    Raises:
        WorkerGone: also from a running call; the worker has closed its end.
        BatchTooLarge: the inputs are more than the worker's limit.
        Internal: the batch has failed as a whole.
    """

    def __init__(
        self, link: WorkerLink, spec: InstanceSpec, outputs: frozenset[str], *, concurrency: int, byte_limit: int
    ) -> None:
        self.concurrency = concurrency
        self._inputs = InputRoom(byte_limit)
        self._link = link
        self._spec = spec
        self._outputs = outputs
        self._numbers = itertools.count(1)
        self._open: dict[int, RunningBatch] = {}
        self._in_worker = 0
        self._room = trio.lowlevel.ParkingLot()
        self._line: deque[object] = deque()  # who waits for room, the first in front
        self._offers: deque[Callable[[], None]] = deque()
        self.changed = trio.lowlevel.ParkingLot()  # woken when `has_open` may have changed
        self._knows_verbose = link.logs_verbose
        link.handlers[EXECUTED] = self._executed
        link.handlers[RESPONSE] = self._responded
        link.at_end.append(self._end)

    def find(self, number: int) -> RunningBatch | None:
        """The batch, if anything of it is still to come."""
        return self._open.get(number)

    @property
    def has_open(self) -> bool:
        """Whether anything is to come for any batch."""
        return bool(self._open)

    def tell_changed(self) -> None:
        if self.changed:
            self.changed.unpark_all()

    def execution_of(self, batch: RunningBatch | None) -> Execution | None:
        """The batch as the caller of other models, while it runs."""
        if batch is None or batch.found is not None or self._link.channel.is_closed:
            return None
        if batch.execution is None:
            source = self._spec.source
            batch.execution = Execution(source, source.name, self._spec.name, self.concurrency)
        return batch.execution

    def begin(
        self,
        requests: Sequence[InferenceRequest],
        done: Callable[[BatchResult | Exception], None],
        free: Callable[[], None] | None = None,
    ) -> bool:
        """One batch, `done` when all of its requests are answered; never before this has returned. False where it would
        have to wait, or cannot be: then nothing was done, and `run` tells why.

        `done` gets what `run` would return or raise; if the worker has gone, `fail_open` tells it so.
        """
        started = time.perf_counter_ns()
        inputs = column_of(requests, self._link.forms)
        if inputs.size > min(_BLOCKING_SIZE, self._inputs.limit) or not self._may_begin(inputs.size):
            return False
        batch = self._begin(requests, inputs.size, started, free)
        try:
            segment = self._segment_for(batch, inputs)
            if segment is not None:
                inputs.copy_to(segment.view)
            self._send(batch, inputs)
        except (Internal, WorkerGone):
            self._take_back(batch)
            return False
        batch.done = done
        return True

    async def run(self, requests: Sequence[InferenceRequest], free: Callable[[], None] | None = None) -> BatchResult:
        """One batch, until all of its requests are answered.

        `free` is called when there is place for another one before that. Cancelled, the worker finishes what it has.
        """
        return await self._end_of(await self._begin_waiting(requests, free))

    async def _end_of(self, batch: RunningBatch) -> BatchResult:
        try:
            await batch.executed.wait()
        except BaseException:
            self._abandon(batch)
            raise
        if batch.result is None:
            raise WorkerGone(self._link.channel.problem)
        if isinstance(batch.result, Exception):
            raise batch.result
        return batch.result

    async def run_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder], *, waits: bool
    ) -> BatchTiming:
        """One batch of a decoupled model; responses go to the responders from now on, until each is closed.

        Returns when there is place for another batch; with `waits` not before `execute` has returned.
        """
        batch = await self._begin_waiting(requests, responders=responders)
        if not waits:
            batch.free = batch.executed.set
            self._offer(batch.free)
        try:
            await batch.executed.wait()
        except BaseException:
            self._abandon(batch)
            raise
        if batch.found is None:
            if self._link.channel.is_closed:
                raise WorkerGone(self._link.channel.problem)
        elif batch.found.head.failure is not None:
            raise self._failure(batch.found.head.failure)
        return BatchTiming(batch.sent - batch.started, time.perf_counter_ns() - batch.sent, 0)

    def _stream(self, batch: RunningBatch, responders: Sequence[Responder]) -> None:
        for index, responder in enumerate(responders):
            ended = partial(self._end_if_over, batch)
            batch.streams.append(ReplyStream(self._link, batch.number, index, responder, ended))
            if responder.is_cancelled:
                batch.cancelled.add(index)

    def cancel(self, request: InferenceRequest) -> None:
        """The caller of a request has gone: tell the model, and end what is called for it alone."""
        for batch in self._open.values():
            for index, each in enumerate(batch.requests):
                if each is request and batch.cancel(index):
                    self._link.channel.post(encode(CANCEL, {"batch": batch.number, "index": index}))

    def fail_open(self, error: ServerError) -> None:
        """End all batches that no task waits for, and all requests of decoupled ones."""
        for batch in list(self._open.values()):
            for stream in batch.streams:
                stream.fail(error)
            if batch.done is not None:
                self._complete(batch, error)

    async def _begin_waiting(
        self,
        requests: Sequence[InferenceRequest],
        free: Callable[[], None] | None = None,
        responders: Sequence[Responder] = (),
    ) -> RunningBatch:
        """A batch that the worker has, once there is room for it. Cancelled, it has not, or it is abandoned."""
        started = time.perf_counter_ns()
        inputs = column_of(requests, self._link.forms)
        if not self._may_begin(inputs.size):
            await self._wait_room(inputs.size)
        batch = self._begin(requests, inputs.size, started, free)
        self._stream(batch, responders)
        try:
            segment = self._segment_for(batch, inputs)
            if segment is not None:
                if inputs.size <= _BLOCKING_SIZE:
                    inputs.copy_to(segment.view)
                else:
                    await trio.to_thread.run_sync(inputs.copy_to, segment.view)
            self._send(batch, inputs)
        except BaseException:
            self._take_back(batch)
            raise
        return batch

    def _begin(
        self, requests: Sequence[InferenceRequest], size: int, started: int, free: Callable[[], None] | None
    ) -> RunningBatch:
        batch = RunningBatch(next(self._numbers), requests, size)
        batch.started = started
        batch.free = free
        self._inputs.take(size)
        self._in_worker += 1
        self._open[batch.number] = batch
        return batch

    def _may_begin(self, size: int) -> bool:
        """Whether a batch need not wait. Raises BatchTooLarge."""
        return not self._line and self._has_place and self._inputs.has(size)

    async def _wait_room(self, size: int) -> None:
        """In turn: a large batch is not passed by small ones."""
        me = object()
        self._line.append(me)
        try:
            while not (self._line[0] is me and self._has_place and self._inputs.has(size)):
                if self._link.channel.is_closed:
                    return
                await self._room.park()
        finally:
            self._line.remove(me)
            if self._line:
                self._room.unpark_all()

    def _segment_for(self, batch: RunningBatch, inputs: TensorColumn) -> Segment | None:
        """Where its inputs are to be copied; None where they cross in the frame."""
        batch.is_alone = self._in_worker == 1
        segment = self._link.arena.input_segment(inputs.size) if batch.is_alone else None
        batch.in_segment = segment is not None
        return segment

    def _send(self, batch: RunningBatch, inputs: TensorColumn) -> None:
        unsent = self._link.arena.take_unsent() if batch.is_alone else {}
        encoded = encode_batch(
            batch.number,
            batch.requests,
            inputs,
            self._outputs,
            about_batch=self._about(batch, list(unsent)),
            in_segment=batch.in_segment,
            is_beside=not batch.is_alone,
        )
        descriptors = [segment.descriptor for segment in unsent.values()]
        self._link.channel.give(encoded.start, encoded.body, encoded.body_size, descriptors)
        batch.sent = time.perf_counter_ns()
        if batch.free is not None and self.concurrency > 1:
            self._offer(batch.free)

    def _take_back(self, batch: RunningBatch) -> None:
        """The worker has not been given it."""
        self._withdraw(batch.free)
        self._close(batch)
        self._leave()

    def _about(self, batch: RunningBatch, segments: Sequence[str]) -> dict[str, object]:
        """What the worker must know of a batch besides its requests; mostly nothing."""
        about: dict[str, object] = {}
        if segments:
            about["segments"] = segments
        if batch.cancelled:
            about["cancelled"] = sorted(batch.cancelled)
        if self._link.logs_verbose != self._knows_verbose:
            self._knows_verbose = about["logs_verbose"] = self._link.logs_verbose
        return about

    def _take_answers(self, batch: RunningBatch, found: Executed) -> None:
        """A batch of which EXECUTED says all, or all but what its response senders are to answer."""
        failure = found.head.failure
        if failure is not None:
            self._link.log_failure(failure)
            if not batch.answers:
                self._drop(batch, found)
                self._complete(batch, self._failure(failure))
                return
            answers: list[Outcome | None] = [
                batch.answers.get(index, self._failure(failure)) for index in range(len(batch.requests))
            ]
        elif found.shared <= _BLOCKING_SIZE:
            answers = self._decode(batch, found)
        else:
            self._link.spawn(self._decode_apart, batch, found)
            return
        self._answered(batch, found, answers)

    async def _decode_apart(self, batch: RunningBatch, found: Executed) -> None:
        """What would hold the loop for too long."""
        try:
            with trio.CancelScope(shield=True):  # some milliseconds; the batch may be somebody else's
                answers = await trio.to_thread.run_sync(self._decode, batch, found)
        except BrokenFrame as error:
            self._link.channel.refuse(str(error))
        else:
            if batch.is_abandoned:
                self._drop(batch, found)
            else:
                self._answered(batch, found, answers)

    def _answered(self, batch: RunningBatch, found: Executed, answers: list[Outcome | None]) -> None:
        self._note_memory(found)
        batch.has_left = True
        self._leave()
        timing = BatchTiming(
            batch.sent - batch.started, batch.computed - batch.sent, time.perf_counter_ns() - batch.computed
        )
        if None in answers:
            batch.unanswered = {
                index for index, answer in enumerate(answers) if answer is None and index not in batch.answers
            }
            if batch.unanswered:
                if batch.free is not None and self.concurrency == 1:
                    self._offer(batch.free)
                batch.late = answers, timing
                return
        self._complete(batch, BatchResult(merged(batch, answers), timing))

    def _complete(self, batch: RunningBatch, result: BatchResult | Exception) -> None:
        """Tell who waits for it; nothing more is to come."""
        self._withdraw(batch.free)
        self._close(batch)
        if batch.done is not None:
            batch.done(result)
        else:
            batch.result = result
            batch.executed.set()

    def _decode(self, batch: RunningBatch, found: Executed) -> list[Outcome | None]:
        outputs, source = self._link.arena.outputs, self._spec.source
        return decode_responses(
            found,
            batch.requests,
            forms=self._link.forms,
            model_name=source.name,
            model_version=source.version,
            output_memory=None if outputs is None else outputs.view,
        )

    def _failure(self, failure: FailedHead) -> Internal:
        return Internal(f"Failed to process the request(s) for model '{self._spec.name}', message: {failure.message}")

    def _note_memory(self, found: Executed) -> None:
        if found.is_kept or found.head.wanted:
            self._link.arena.note_answer(kept=found.is_kept, wanted=found.head.wanted)

    def _abandon(self, batch: RunningBatch) -> None:
        """Nobody waits for it any more, but the worker has it, unless it has answered in this moment."""
        self._withdraw(batch.free)
        batch.is_abandoned = True
        if batch.has_left:
            self._close(batch)

    def _drop(self, batch: RunningBatch, found: Executed) -> None:
        self._note_memory(found)
        batch.has_left = True
        self._leave()
        self._close(batch)

    def _close(self, batch: RunningBatch) -> None:
        """Nothing more is to come for it."""
        self._open.pop(batch.number, None)
        self._give_back_inputs(batch)
        self.tell_changed()

    def _give_back_inputs(self, batch: RunningBatch) -> None:
        """The worker holds nothing more of them."""
        if batch.input_size:
            self._inputs.give_back(batch.input_size)
            batch.input_size = 0
            self._give_room()

    def _leave(self) -> None:
        """A batch has left the worker."""
        self._in_worker -= 1
        self._give_room()

    @property
    def _has_place(self) -> bool:
        return self._in_worker < self.concurrency and len(self._open) < self.concurrency + MOST_LATE_BATCHES

    def _offer(self, free: Callable[[], None]) -> None:
        """Call it as soon as there is place for another batch."""
        self._offers.append(free)
        self._give_room()

    def _withdraw(self, free: Callable[[], None] | None) -> None:
        if free is not None and free in self._offers:
            self._offers.remove(free)

    def _give_room(self) -> None:
        if self._line:
            self._room.unpark_all()
        while self._offers and self._has_place:
            self._offers.popleft()()

    # Frames of the worker

    def _executed(self, frame: Frame) -> None:
        found = decode_executed(frame)
        batch = self._open.get(found.batch)
        if batch is None or batch.found is not None:
            raise BrokenFrame("it answered what was not asked")
        batch.found = found
        if batch.execution is not None:
            batch.execution.is_running = False
        if batch.in_segment and not found.is_kept:
            self._give_back_inputs(batch)
        if batch.streams:
            self._end_execution(batch, found)
            batch.executed.set()
        elif batch.is_abandoned:
            self._drop(batch, found)
        else:
            batch.computed = time.perf_counter_ns()
            self._take_answers(batch, found)

    def _end_execution(self, batch: RunningBatch, found: Executed) -> None:
        """A decoupled batch has left the worker, but for its response senders."""
        head = found.head
        self._note_memory(found)
        if not all(0 <= index < len(batch.streams) for index in head.rescheduled):
            raise BrokenFrame(f"it wants more than {len(batch.streams)} requests to run again")
        if head.failure is not None:
            self._link.log_failure(head.failure)
            for stream in batch.streams:
                stream.fail(self._failure(head.failure))
        for index in head.rescheduled:
            batch.streams[index].complete(Rescheduled())
        batch.has_left = True
        self._leave()
        self._end_if_over(batch)

    def _responded(self, frame: Frame) -> None:
        head = decode_head(frame, ResponseHead)
        batch = self._open.get(head.batch)
        if batch is None:  # given up, or failed
            return
        if not 0 <= head.index < len(batch.requests):
            raise BrokenFrame(f"it answers request {head.index} of {len(batch.requests)}")
        outcome = self._outcome(frame, head, batch.requests[head.index])
        if not batch.streams:
            if outcome is None:
                raise BrokenFrame("it answered a request without a response")
            batch.answer(head.index, outcome)
            if batch.late is not None and not batch.unanswered:
                answers, timing = batch.late
                self._complete(batch, BatchResult(merged(batch, answers), timing))
        elif isinstance(outcome, InferenceResponse):
            batch.streams[head.index].put(outcome, len(frame.body))
        else:
            batch.streams[head.index].complete(outcome)

    def _outcome(self, frame: Frame, head: ResponseHead, request: InferenceRequest) -> Outcome | None:
        if head.end == DROPPED:
            return Internal(
                f"model instance '{self._spec.name}' has let go of the request without sending its final response"
            )
        source = self._spec.source
        return decode_response(
            frame,
            head,
            request,
            forms=self._link.forms,
            model_name=source.name,
            model_version=source.version,
            is_final=head.end == FINAL,
        )

    def _end_if_over(self, batch: RunningBatch) -> None:
        if batch.found is not None and all(stream.is_over for stream in batch.streams):
            self._close(batch)
            self._give_room()

    def _end(self) -> None:
        """The worker says nothing more."""
        self._room.unpark_all()
        self.tell_changed()
        for batch in self._open.values():
            if batch.execution is not None:
                batch.execution.is_running = False
            batch.executed.set()


def merged(batch: RunningBatch, answers: Sequence[Outcome | None]) -> Sequence[Outcome]:
    """With what response senders have said."""
    if None not in answers:
        return answers  # type: ignore[return-value]  # none is None
    return [batch.answers[index] if answer is None else answer for index, answer in enumerate(answers)]
