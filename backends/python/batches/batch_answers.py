"""Dispatches a worker's EXECUTED and RESPONSE frames to the batches and requests that they answer.

Flow: worker → link → [batch answers] → open batches or reply streams. A batch has left the worker when EXECUTED says
so; what its response senders are to answer comes in RESPONSE, before that or much later.
"""

from __future__ import annotations

import time

import trio

from backends.interface import BatchResult, BatchTiming, InstanceSpec, Rescheduled
from backends.python.batches.codec import (
    Executed,
    Outcome,
    decode_executed,
    decode_response,
    decode_responses,
)
from backends.python.batches.open_batch import OpenBatch
from backends.python.batches.open_batches import OpenBatches
from backends.python.wire.frames import BrokenFrame, Frame, decode_head
from backends.python.wire.heads import FailedHead, ResponseHead
from backends.python.worker.trioton_worker.frames import DROPPED, EXECUTED, FINAL, RESPONSE
from backends.python.workers.link import WorkerLink
from protocol.errors import Internal
from protocol.messages import InferenceRequest, InferenceResponse

# Copying or decoding this many bytes takes less time than a thread does to begin.
BLOCKING_SIZE = 1 << 22


class BatchAnswers:
    """Ends the open batches as the worker's frames arrive. An invalid frame raises BrokenFrame, in the link, which then
    ends the worker."""

    def __init__(self, link: WorkerLink, spec: InstanceSpec, open_batches: OpenBatches) -> None:
        self._link = link
        self._spec = spec
        self._open = open_batches
        self._room = open_batches.room
        link.handlers[EXECUTED] = self._executed
        link.handlers[RESPONSE] = self._responded

    def failure(self, failure: FailedHead) -> Internal:
        """The error of a batch that has failed as a whole."""
        return Internal(f"Failed to process the request(s) for model '{self._spec.name}', message: {failure.message}")

    # Batches that have left the worker

    def _executed(self, frame: Frame) -> None:
        found = decode_executed(frame)
        batch = self._open.by_number.get(found.batch)
        if batch is None or batch.found is not None:
            raise BrokenFrame("it answered what was not asked")
        batch.found = found
        if batch.execution is not None:
            batch.execution.is_running = False
        if batch.streams:
            self._end_execution(batch, found)
        elif batch.is_abandoned:
            self._drop(batch, found)
        else:
            batch.computed = time.perf_counter_ns()
            if found.head.failure is not None:
                self._fail(batch, found, found.head.failure)
            elif max(found.shared, batch.input_size if found.placed else 0) <= BLOCKING_SIZE:
                self._answered(batch, found, self._decode(batch, found))
            else:
                self._link.spawn(self._decode_apart, batch, found)

    def _fail(self, batch: OpenBatch, found: Executed, failure: FailedHead) -> None:
        """Fail the whole batch, but for what its response senders have answered."""
        self._link.log_failure(failure, batch.tags())
        error = self.failure(failure)
        if batch.answers:
            self._answered(batch, found, [batch.answers.get(index, error) for index in range(len(batch.requests))])
        else:
            self._note_memory(batch, found)
            self._open.close(batch, error)

    async def _decode_apart(self, batch: OpenBatch, found: Executed) -> None:
        """Decode in a thread what would block the event loop for too long."""
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

    def _answered(self, batch: OpenBatch, found: Executed, answers: list[Outcome | None]) -> None:
        """EXECUTED answers all requests, or all but those that response senders are to answer."""
        if found.is_kept or found.head.wanted:
            self._note_memory(batch, found)
        timing = BatchTiming(
            batch.sent - batch.started, batch.computed - batch.sent, time.perf_counter_ns() - batch.computed
        )
        if None not in answers:
            self._open.close(batch, BatchResult(answers, timing))  # type: ignore[arg-type]  # none is None
        elif not batch.owes(answers, timing):
            self._open.close(batch, BatchResult(batch.merged(answers), timing))
        else:
            self._room.leave_place(batch, with_inputs=batch.inputs is not None and not found.is_kept)
            if batch.free is not None and self._room.concurrency == 1:
                self._room.offer(batch.free)

    def _drop(self, batch: OpenBatch, found: Executed) -> None:
        self._note_memory(batch, found)
        self._open.close(batch)

    def _note_memory(self, batch: OpenBatch, found: Executed) -> None:
        """Size the output segment of the next batch by what the worker reports."""
        arena = self._link.arena
        if found.is_kept and batch.inputs is not None:
            arena.inputs.drop(batch.inputs)
        if found.head.wanted:
            arena.note_wanted(found.head.wanted)

    def _decode(self, batch: OpenBatch, found: Executed) -> list[Outcome | None]:
        arena, source = self._link.arena, self._spec.source
        return decode_responses(
            found,
            batch.requests,
            schemas=self._link.schemas,
            model_name=source.name,
            model_version=source.version,
            outputs=None if batch.outputs is None or not found.shared else arena.outputs.show(batch.outputs),
            inputs=None if batch.inputs is None or not found.placed else arena.inputs.show(batch.inputs),
        )

    def _end_execution(self, batch: OpenBatch, found: Executed) -> None:
        """A decoupled batch has left the worker, but for its response senders."""
        head = found.head
        self._note_memory(batch, found)
        if not all(0 <= index < len(batch.streams) for index in head.rescheduled):
            raise BrokenFrame(f"it wants more than {len(batch.streams)} requests to run again")
        if head.failure is not None:
            self._link.log_failure(head.failure, batch.tags())
            for stream in batch.streams:
                stream.fail(self.failure(head.failure))
        for index in head.rescheduled:
            batch.streams[index].complete(Rescheduled())
        self._room.leave_place(batch, with_inputs=batch.inputs is not None and not found.is_kept)
        self.end_if_over(batch)
        if batch.executed is not None:
            batch.executed.set()

    def end_if_over(self, batch: OpenBatch) -> None:
        """Close a decoupled batch if no more frames of it will come."""
        if batch.found is not None and all(stream.is_over for stream in batch.streams):
            self._open.close(batch)

    # Answers of response senders

    def _responded(self, frame: Frame) -> None:
        head = decode_head(frame, ResponseHead)
        batch = self._open.by_number.get(head.batch)
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
                self._open.close(batch, BatchResult(batch.merged(answers), timing))
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
            schemas=self._link.schemas,
            model_name=source.name,
            model_version=source.version,
            is_final=head.end == FINAL,
        )
