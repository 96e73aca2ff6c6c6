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
from backends.python.batch import Outcome, decode_response, decode_responses, encode_batch
from backends.python.channel import WorkerGone
from backends.python.heads import ExecutedHead, ResponseHead
from backends.python.link import WorkerLink
from backends.python.portions import InputRoom, input_size
from backends.python.reply_stream import ReplyStream
from backends.python.running_batch import RunningBatch
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
        self.changed.unpark_all()

    async def run(
        self, requests: Sequence[InferenceRequest], free: Callable[[], None] | None = None
    ) -> tuple[list[Outcome], BatchTiming]:
        """One batch, until all of its requests are answered.

        `free` is called when there is place for another one before that. Cancelled, the worker finishes what it has.
        """
        started = time.perf_counter_ns()
        batch = await self._begin(requests)
        try:
            await self._send(batch)
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
        batch = await self._begin(requests)
        for index, responder in enumerate(responders):
            ended = partial(self._end_if_over, batch)
            batch.streams.append(ReplyStream(self._link, batch.number, index, responder, ended))
            if responder.is_cancelled:
                batch.cancelled.add(index)
        try:
            await self._send(batch)
            sent = time.perf_counter_ns()
            if not waits:
                self._offer(batch.executed.set)
            await batch.executed.wait()
        except BaseException:
            self._abandon(batch, batch.executed.set)
            raise
        if batch.head is None and self._link.channel.is_closed:
            raise WorkerGone(self._link.channel.problem)
        if batch.head is not None and batch.head.failure is not None:
            raise self._failure(batch.head)
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

    async def _begin(self, requests: Sequence[InferenceRequest]) -> RunningBatch:
        size = input_size(requests)
        await self._wait_room(size)
        source = self._spec.source
        execution = Execution(source, source.name, self._spec.name, self.concurrency)
        batch = RunningBatch(next(self._numbers), requests, execution, size)
        self._inputs.take(size)
        self._in_worker += 1
        self._open[batch.number] = batch
        return batch

    async def _wait_room(self, size: int) -> None:
        """In turn: a large batch is not passed by small ones."""
        if not self._line and self._has_place and self._inputs.has(size):
            return
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

    async def _send(self, batch: RunningBatch) -> None:
        arena = self._link.arena
        is_alone = self._in_worker == 1
        descriptors: list[int] = []

        def input_memory(size: int) -> memoryview | None:
            segment = arena.input_segment(size) if is_alone else None
            batch.in_segment = segment is not None
            return None if segment is None else segment.view

        def unsent() -> list[str]:
            segments = arena.take_unsent() if is_alone else {}
            descriptors.extend(segment.descriptor for segment in segments.values())
            return list(segments)

        about: dict[str, object] = {"batch": batch.number}
        if not is_alone:
            about["is_beside"] = True
        if batch.cancelled:
            about["cancelled"] = sorted(batch.cancelled)
        if self._link.logs_verbose != self._knows_verbose:
            self._knows_verbose = about["logs_verbose"] = self._link.logs_verbose
        encode_it = partial(
            encode_batch,
            batch.requests,
            self._outputs,
            about_batch=about,
            input_memory=input_memory,
            unsent=unsent,
        )
        try:
            is_small = batch.input_size <= _BLOCKING_SIZE
            encoded = encode_it() if is_small else await trio.to_thread.run_sync(encode_it)
        except BaseException:
            self._close(batch)
            self._leave()
            raise
        await self._link.channel.send(encoded.start, encoded.body, descriptors)

    async def _answers(self, batch: RunningBatch) -> list[Outcome | None]:
        """What EXECUTED says; None for those that their response senders answer."""
        head, frame = batch.head, batch.frame
        if head is None or frame is None:
            raise WorkerGone(self._link.channel.problem)
        outputs = self._link.arena.outputs
        source = self._spec.source
        try:
            if head.failure is not None:
                self._link.log_failure(head.failure)
                if not batch.answers:
                    raise self._failure(head)
                return [batch.answers.get(index, self._failure(head)) for index in range(len(batch.requests))]
            decode = partial(
                decode_responses,
                frame,
                head,
                batch.requests,
                model_name=source.name,
                model_version=source.version,
                output_memory=None if outputs is None else outputs.view,
            )
            answers = decode() if head.shared <= _BLOCKING_SIZE else await trio.to_thread.run_sync(decode)
        finally:
            self._note_memory(head)
        batch.frame = None
        batch.unanswered = {
            index for index, answer in enumerate(answers) if answer is None and index not in batch.answers
        }
        return answers

    async def _wait_answered(self, batch: RunningBatch) -> None:
        batch.answered = trio.Event()
        await batch.answered.wait()
        if batch.unanswered:
            raise WorkerGone(self._link.channel.problem)

    def _failure(self, head: ExecutedHead) -> Internal:
        message = "" if head.failure is None else head.failure.message
        return Internal(f"Failed to process the request(s) for model '{self._spec.name}', message: {message}")

    def _note_memory(self, head: ExecutedHead) -> None:
        self._link.arena.note_answer(kept=head.kept, wanted=head.wanted)

    def _abandon(self, batch: RunningBatch, free: Callable[[], None] | None) -> None:
        """Nobody waits for it any more, but the worker has it, unless it has answered in this moment."""
        self._withdraw(free)
        batch.is_abandoned = True
        if batch.head is not None:
            self._drop(batch)

    def _drop(self, batch: RunningBatch) -> None:
        assert batch.head is not None
        self._note_memory(batch.head)
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
        self._room.unpark_all()
        while self._offers and self._has_place:
            self._offers.popleft()()

    # Frames of the worker

    def _executed(self, frame: Frame) -> None:
        head = decode_head(frame, ExecutedHead)
        batch = self._open.get(head.batch)
        if batch is None or batch.head is not None:
            raise BrokenFrame("it answered what was not asked")
        batch.head, batch.frame = head, frame
        batch.execution.is_running = False
        if batch.in_segment and not head.kept:
            self._give_back_inputs(batch)
        if batch.streams:
            self._end_execution(batch, head)
        elif batch.is_abandoned:
            self._drop(batch)
        batch.executed.set()

    def _end_execution(self, batch: RunningBatch, head: ExecutedHead) -> None:
        """A decoupled batch has left the worker, but for its response senders."""
        batch.frame = None
        self._note_memory(head)
        if not all(0 <= index < len(batch.streams) for index in head.rescheduled):
            raise BrokenFrame(f"it wants more than {len(batch.streams)} requests to run again")
        if head.failure is not None:
            self._link.log_failure(head.failure)
            for stream in batch.streams:
                stream.fail(self._failure(head))
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
        if head.names is None and head.error is None:
            return None
        source = self._spec.source
        return decode_response(
            frame,
            head,
            request,
            model_name=source.name,
            model_version=source.version,
            is_final=head.end == FINAL,
        )

    def _end_if_over(self, batch: RunningBatch) -> None:
        if batch.head is not None and all(stream.is_over for stream in batch.streams):
            self._close(batch)
            self._give_room()

    def _end(self) -> None:
        """The worker says nothing more."""
        self._room.unpark_all()
        self.tell_changed()
        for batch in self._open.values():
            batch.execution.is_running = False
            batch.executed.set()
            if batch.answered is not None:
                batch.answered.set()
