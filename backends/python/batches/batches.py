"""Sends batches to one worker, bounded and in order, and forwards cancellation of their requests.

Flow: backend → [batches] → link → worker; back by `batch_answers`. A worker has one batch at a time, or as many as
`concurrency` says where its `execute` is a coroutine; a batch whose requests are answered by response sender leaves the
worker when `execute` returns, and may be answered much later. In all its inputs are never more than the worker's limit.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

import trio

from backends.interface import STARTED, BatchResult, BatchTiming, InstanceSpec, Responder, Started
from backends.python.batches.batch_answers import BLOCKING_SIZE, BatchAnswers
from backends.python.batches.codec import encode_batch
from backends.python.batches.open_batch import OpenBatch
from backends.python.batches.open_batches import OpenBatches
from backends.python.batches.reply_stream import ReplyStream
from backends.python.settings import PythonSettings
from backends.python.wire.channel import WorkerGone
from backends.python.wire.frames import Frame, encode
from backends.python.wire.tensor_columns import TensorColumn, column_of
from backends.python.worker.trioton_worker.frames import BESIDE, CANCEL, COROUTINE, INLINE_BYTE_SIZE, NO_SLOT, TRIM
from backends.python.workers.idle_memory import IdleMemory
from backends.python.workers.link import WorkerLink
from backends.services import Execution
from protocol.errors import Internal
from protocol.messages import InferenceRequest
from protocol.sync.signal import Signal

_inputs_of = attrgetter("inputs")


class Batches:
    """`begin`, `run` and `run_decoupled` may be called by several tasks; batches reach the worker in the order of the
    calls. `open` are those that have not ended.

    Raises:
        WorkerGone: also from a running call; the worker has closed its end.
        BatchTooLarge: the inputs are more than the worker's limit.
        Internal: the batch has failed as a whole.
    """

    def __init__(
        self, link: WorkerLink, spec: InstanceSpec, outputs: frozenset[str], *, concurrency: int, byte_limit: int
    ) -> None:
        self.open = OpenBatches(link.channel, concurrency=concurrency, byte_limit=byte_limit)
        self._room = self.open.room
        self._answers = BatchAnswers(link, spec, self.open)
        self._link = link
        self._spec = spec
        self._outputs = outputs
        self._numbers = itertools.count(1)
        self._knows_verbose = link.logs(logging.DEBUG)
        link.handlers[COROUTINE] = self._let_overlap
        link.tags_of = self.open.tags_of
        link.tags_now = self.open.tags_now
        link.at_end.append(self.open.end)
        link.idle_memory = IdleMemory(link.arena, self._is_idle, lambda: link.channel.post(encode(TRIM, {})))

    def _is_idle(self) -> bool:
        return not self.open.has_any

    def let_overlap(self) -> None:
        """Allow batches to overlap: the model's `execute` is a coroutine."""
        self._room.concurrency = PythonSettings.of(self._spec.source).concurrency
        for batch in list(self.open.by_number.values()):
            if batch.free is not None and not batch.has_left and not self._room.is_offered(batch):
                self._room.offer(batch.free)
        self._room.give()

    def _let_overlap(self, frame: Frame) -> None:
        self.let_overlap()

    def execution_of(self, batch: OpenBatch | None) -> Execution | None:
        """The batch as the caller of other models, while it runs."""
        if batch is None or batch.found is not None or self._link.channel.is_closed:
            return None
        if batch.execution is None:
            source = self._spec.source
            # A call that comes back to a model with sequences may need the very slot or sequence that its caller has.
            concurrency = 1 if source.config.sequence_batching is not None else self._room.concurrency
            batch.execution = Execution(source, source.name, self._spec.name, concurrency)
        return batch.execution

    def begin(
        self,
        requests: Sequence[InferenceRequest],
        done: Callable[[BatchResult | Exception], None],
        free: Callable[[], None] | None = None,
    ) -> BatchResult | Started | None:
        """As `Backend.begin`. None where the batch would have to wait, or cannot be: then nothing was done, and `run`
        says why.

        `done` gets what `run` would return or raise; if the worker has gone, `open.fail_open` calls it.
        """
        started = time.perf_counter_ns()
        try:
            inputs = column_of(map(_inputs_of, requests), self._link.schemas)
        except Internal:
            return None
        size = inputs.size
        if size > BLOCKING_SIZE or size > self._room.byte_limit or not self._room.enter(size):
            return None
        batch = OpenBatch(next(self._numbers), requests, size, started=started, free=free)
        self.open.by_number[batch.number] = batch
        batch.is_alone = self._room.in_worker == 1
        try:
            if batch.is_alone:
                self._take_segments(batch)
                if batch.inputs is not None:
                    inputs.copy_to(batch.inputs.view)
            self._send(batch, inputs)
        except WorkerGone:
            self.open.close(batch)
            return None
        except BaseException:
            self.open.close(batch)
            raise
        batch.done = done
        return STARTED

    async def run(self, requests: Sequence[InferenceRequest], free: Callable[[], None] | None = None) -> BatchResult:
        """One batch, until all of its requests are answered.

        `free` is called when there is place for another one before that. Cancelled, the worker finishes what it has.
        """
        return await self._end_of(await self._begin_waiting(requests, free))

    async def _end_of(self, batch: OpenBatch) -> BatchResult:
        await self._wait(batch, Signal())
        if batch.result is None:
            raise WorkerGone(self._link.channel.problem)
        if isinstance(batch.result, Exception):
            raise batch.result
        return batch.result

    async def _wait(self, batch: OpenBatch, executed: Signal) -> None:
        """Wait until the batch has ended. Cancelled, it is abandoned."""
        batch.executed = executed
        try:
            await executed.wait()
        except BaseException:
            self.open.abandon(batch)
            raise

    async def run_decoupled(
        self,
        requests: Sequence[InferenceRequest],
        responders: Sequence[Responder],
        free: Callable[[], None] | None = None,
        *,
        waits: bool,
    ) -> BatchTiming:
        """One batch of a decoupled model; responses go to the responders from now on, until each is closed.

        Returns when there is place for another batch; with `waits` not before `execute` has returned, and `free` is
        called when there is place before that.
        """
        batch = await self._begin_waiting(requests, free, responders)
        executed = Signal()
        if not waits:
            batch.free = executed.set
            self._room.offer(batch.free)
        await self._wait(batch, executed)
        self._room.withdraw(batch)
        if batch.found is None:
            if self._link.channel.is_closed:
                raise WorkerGone(self._link.channel.problem)
        elif batch.found.head.failure is not None:
            raise self._answers.failure(batch.found.head.failure)
        return BatchTiming(batch.sent - batch.started, time.perf_counter_ns() - batch.sent, 0)

    def _stream(self, batch: OpenBatch, responders: Sequence[Responder]) -> None:
        for index, responder in enumerate(responders):
            ended = partial(self._answers.end_if_over, batch)
            batch.streams.append(ReplyStream(self._link, batch.number, index, responder, ended))
            if responder.is_cancelled:
                batch.cancelled.add(index)

    def cancel(self, request: InferenceRequest) -> None:
        """A request was cancelled: tell the model, and cancel the calls made for it alone."""
        for batch in self.open.by_number.values():
            for index, each in enumerate(batch.requests):
                if each is request and batch.cancel(index):
                    self._link.channel.post(encode(CANCEL, {"batch": batch.number, "index": index}))

    async def _begin_waiting(
        self,
        requests: Sequence[InferenceRequest],
        free: Callable[[], None] | None = None,
        responders: Sequence[Responder] = (),
    ) -> OpenBatch:
        """Send a batch to the worker once there is room. Cancelled, it was not sent, or it is abandoned."""
        started = time.perf_counter_ns()
        inputs = column_of(map(_inputs_of, requests), self._link.schemas)
        if not self._room.enter(inputs.size):
            await self._room.wait(inputs.size)
        batch = OpenBatch(next(self._numbers), requests, inputs.size, started=started, free=free)
        self.open.by_number[batch.number] = batch
        batch.is_alone = self._room.in_worker == 1
        self._stream(batch, responders)
        try:
            if batch.is_alone:
                self._take_segments(batch)
            if batch.inputs is not None:
                if inputs.size <= BLOCKING_SIZE:
                    inputs.copy_to(batch.inputs.view)
                else:
                    await trio.to_thread.run_sync(inputs.copy_to, batch.inputs.view)
            self._send(batch, inputs)
        except BaseException:
            self.open.close(batch)
            raise
        return batch

    def _take_segments(self, batch: OpenBatch) -> None:
        """Take the shared memory segments for its inputs and outputs."""
        arena = self._link.arena
        if batch.input_size > INLINE_BYTE_SIZE:
            batch.inputs = arena.input_segment(batch.input_size)
        if arena.output_size:
            batch.outputs = arena.output_segment()

    def _send(self, batch: OpenBatch, inputs: TensorColumn) -> None:
        link = self._link
        about: dict[str, object] = {}
        descriptors: Sequence[int] = ()
        if link.arena.has_unsent and batch.is_alone:
            unsent = link.arena.take_unsent()
            about["segments"] = [segment.slot for segment in unsent]
            descriptors = [segment.descriptor for segment in unsent]
        if batch.cancelled:
            about["cancelled"] = sorted(batch.cancelled)
        if link.logs(logging.DEBUG) != self._knows_verbose:
            self._knows_verbose = about["logs_verbose"] = not self._knows_verbose
        output_slot = NO_SLOT if batch.outputs is None else batch.outputs.slot
        encoded = encode_batch(
            batch.number,
            batch.requests,
            inputs,
            self._outputs,
            about_batch=about,
            input_slot=NO_SLOT if batch.inputs is None else batch.inputs.slot,
            output_slot=output_slot if batch.is_alone else BESIDE,
        )
        link.channel.give(encoded.start, encoded.body, encoded.body_size, descriptors)
        batch.sent = time.perf_counter_ns()
        if batch.free is not None and self._room.concurrency > 1:
            self._room.offer(batch.free)
