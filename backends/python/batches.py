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

from backends.interface import BatchTiming, InstanceSpec, Rescheduled, Responder
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
from backends.python.signals import Signal
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
    """`run` and `run_decoupled` may be called by several tasks; batches reach the worker in the order of the calls.

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
        if batch is None or batch.executed.is_set:
            return None
        if batch.execution is None:
            source = self._spec.source
            batch.execution = Execution(source, source.name, self._spec.name, self.concurrency)
        return batch.execution

    async def run(
        self, requests: Sequence[InferenceRequest], free: Callable[[], None] | None = None
    ) -> tuple[list[Outcome], BatchTiming]:
        """One batch, until all of its requests are answered.

        `free` is called when there is place for another one before that. Cancelled, the worker finishes what it has.
        """
        started = time.perf_counter_ns()
        inputs = column_of(requests, self._link.forms)
        if not self._may_begin(inputs.size):
            await self._wait_room(inputs.size)
        batch = self._begin(requests, inputs.size)
        try:
            await self._send(batch, inputs)
            sent = time.perf_counter_ns()
            if free is not None and self.concurrency > 1:
                self._offer(free)
            await batch.executed.wait()
        except BaseException:
            self._abandon(batch, free)
            raise
        computed = time.perf_counter_ns()
        try:
            answers = await self._answers(batch)
        finally:
            self._leave()
        timing = BatchTiming(sent - started, computed - sent, time.perf_counter_ns() - computed)
        try:
            if batch.unanswered:
                if free is not None and self.concurrency == 1:
                    self._offer(free)
                await self._wait_answered(batch)
        finally:
            self._withdraw(free)
            self._close(batch)
        return [batch.answers[index] if answer is None else answer for index, answer in enumerate(answers)], timing

    async def run_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder], *, waits: bool
    ) -> BatchTiming:
        """One batch of a decoupled model; responses go to the responders from now on, until each is closed.

        Returns when there is place for another batch; with `waits` not before `execute` has returned.
        """
        started = time.perf_counter_ns()
        inputs = column_of(requests, self._link.forms)
        if not self._may_begin(inputs.size):
            await self._wait_room(inputs.size)
        batch = self._begin(requests, inputs.size)
        for index, responder in enumerate(responders):
            ended = partial(self._end_if_over, batch)
            batch.streams.append(ReplyStream(self._link, batch.number, index, responder, ended))
            if responder.is_cancelled:
                batch.cancelled.add(index)
        try:
            await self._send(batch, inputs)
            sent = time.perf_counter_ns()
            if not waits:
                self._offer(batch.executed.set)
            await batch.executed.wait()
        except BaseException:
            self._abandon(batch, batch.executed.set)
            raise
        if batch.found is None:
            if self._link.channel.is_closed:
                raise WorkerGone(self._link.channel.problem)
        elif batch.found.head.failure is not None:
            raise self._failure(batch.found.head.failure)
        return BatchTiming(sent - started, time.perf_counter_ns() - sent, 0)

    def cancel(self, request: InferenceRequest) -> None:
        """The caller of a request has gone: tell the model, and end what is called for it alone."""
        for batch in self._open.values():
            for index, each in enumerate(batch.requests):
                if each is request and batch.cancel(index):
                    self._link.channel.post(encode(CANCEL, {"batch": batch.number, "index": index}))

    def fail_streams(self, error: ServerError) -> None:
        """End all requests of decoupled batches."""
        for batch in list(self._open.values()):
            for stream in batch.streams:
                stream.fail(error)

    def _begin(self, requests: Sequence[InferenceRequest], size: int) -> RunningBatch:
        batch = RunningBatch(next(self._numbers), requests, size)
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

    async def _send(self, batch: RunningBatch, inputs: TensorColumn) -> None:
        arena = self._link.arena
        is_alone = self._in_worker == 1
        try:
            segment = arena.input_segment(inputs.size) if is_alone else None
            batch.in_segment = segment is not None
            if segment is not None:
                if inputs.size <= _BLOCKING_SIZE:
                    inputs.copy_to(segment.view)
                else:
                    await trio.to_thread.run_sync(inputs.copy_to, segment.view)
            unsent = arena.take_unsent() if is_alone else {}
            encoded = encode_batch(
                batch.number,
                batch.requests,
                inputs,
                self._outputs,
                about_batch=self._about(batch, list(unsent)),
                in_segment=batch.in_segment,
                is_beside=not is_alone,
            )
        except BaseException:
            self._close(batch)
            self._leave()
            raise
        descriptors = [segment.descriptor for segment in unsent.values()]
        await self._link.channel.send(encoded.start, encoded.body, encoded.body_size, descriptors)

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

    async def _answers(self, batch: RunningBatch) -> list[Outcome | None]:
        """What EXECUTED said; None for those that their response senders answer."""
        found = batch.found
        if found is None:
            raise WorkerGone(self._link.channel.problem)
        try:
            failure = found.head.failure
            if failure is not None:
                self._link.log_failure(failure)
                if not batch.answers:
                    raise self._failure(failure)
                return [batch.answers.get(index, self._failure(failure)) for index in range(len(batch.requests))]
            if found.shared <= _BLOCKING_SIZE:
                answers = self._decode(batch, found)
            else:
                answers = await trio.to_thread.run_sync(self._decode, batch, found)
        finally:
            self._note_memory(found)
        if None in answers:
            batch.unanswered = {
                index for index, answer in enumerate(answers) if answer is None and index not in batch.answers
            }
        return answers

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

    async def _wait_answered(self, batch: RunningBatch) -> None:
        batch.answered = Signal()
        await batch.answered.wait()
        if batch.unanswered:
            raise WorkerGone(self._link.channel.problem)

    def _failure(self, failure: FailedHead) -> Internal:
        return Internal(f"Failed to process the request(s) for model '{self._spec.name}', message: {failure.message}")

    def _note_memory(self, found: Executed) -> None:
        if found.is_kept or found.head.wanted:
            self._link.arena.note_answer(kept=found.is_kept, wanted=found.head.wanted)

    def _abandon(self, batch: RunningBatch, free: Callable[[], None] | None) -> None:
        """Nobody waits for it any more, but the worker has it, unless it has answered in this moment."""
        self._withdraw(free)
        batch.is_abandoned = True
        if batch.found is not None:
            self._drop(batch, batch.found)

    def _drop(self, batch: RunningBatch, found: Executed) -> None:
        self._note_memory(found)
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
        elif batch.is_abandoned:
            self._drop(batch, found)
        batch.executed.set()

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
            if batch.answered is not None:
                batch.answered.set()
