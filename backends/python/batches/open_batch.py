"""One batch in a worker, from EXECUTE to its end: its results so far, and the BLS calls made on its behalf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from backends.interface import BatchResult, BatchTiming
from backends.python.batches.codec import Executed, Outcome
from backends.python.batches.reply_stream import ReplyStream
from backends.python.wire.arena import Segment
from backends.services import Execution
from protocol.log.tags import Tags, tags_of_batch
from protocol.messages import InferenceRequest
from protocol.sync.signal import Signal

# In place of a request's index: a call belongs to the whole batch.
WHOLE_BATCH = -1


class Cancellable(Protocol):
    """A call made on behalf of requests of a batch, which ends with them."""

    def cancel(self) -> None: ...


class OpenBatch(msgspec.Struct, eq=False):
    """From EXECUTE to the last answer.

    `done` is called at its end; else a task waits for `executed`, and `result` is its end then, None if the worker has
    gone. For decoupled models `executed` is set when EXECUTED has come or never will. `found` is what that says.
    `execution` is there once the batch calls other models. `has_left` the worker, but for its response senders, it may
    have before its end. `free` is called when there is place for another one. Times are of the performance counter.
    `input_size` are the bytes of its inputs that the worker may still hold; `inputs` and `outputs` are its segments of
    shared memory. Only a batch that `is_alone` in the worker may have any. `answers` has what response senders have
    sent, `late` the others, and how long they took, while some are `unanswered`. `streams` are those of a decoupled
    model.
    """

    number: int
    requests: Sequence[InferenceRequest]
    input_size: int = 0
    inputs: Segment | None = None
    outputs: Segment | None = None
    is_alone: bool = True
    started: int = 0
    sent: int = 0
    computed: int = 0
    free: Callable[[], None] | None = None
    done: Callable[[BatchResult | Exception], None] | None = None
    executed: Signal | None = None
    result: BatchResult | Exception | None = None
    found: Executed | None = None
    has_left: bool = False
    execution: Execution | None = None
    is_abandoned: bool = False
    answers: dict[int, Outcome] = msgspec.field(default_factory=dict)
    unanswered: set[int] = msgspec.field(default_factory=set)
    late: tuple[Sequence[Outcome | None], BatchTiming] | None = None
    streams: list[ReplyStream] = msgspec.field(default_factory=list)
    cancelled: set[int] = msgspec.field(default_factory=set)
    calls: dict[Cancellable, int] = msgspec.field(default_factory=dict)
    found_tags: Tags | None = None

    def tags(self) -> Tags:
        """What log lines say of its requests; they may be many."""
        if self.found_tags is None:
            self.found_tags = tags_of_batch(self.requests)
        return self.found_tags

    def answer(self, index: int, outcome: Outcome) -> None:
        """The response sender of a request has sent its only response; later ones are dropped."""
        self.answers.setdefault(index, outcome)
        self.unanswered.discard(index)

    def owes(self, answers: Sequence[Outcome | None], timing: BatchTiming) -> bool:
        """Whether response senders still owe some of the responses that `answers` lack; then those are kept as
        `late`."""
        self.unanswered = {
            index for index, answer in enumerate(answers) if answer is None and index not in self.answers
        }
        if self.unanswered:
            self.late = answers, timing
        return bool(self.unanswered)

    def merged(self, answers: Sequence[Outcome | None]) -> Sequence[Outcome]:
        """The answers together with those of response senders."""
        if None not in answers:
            return answers  # type: ignore[return-value]  # none is None
        return [self.answers[index] if answer is None else answer for index, answer in enumerate(answers)]

    def add_call(self, call: Cancellable, index: int) -> None:
        """Register a call, which is cancelled with the requests that it is made for."""
        self.calls[call] = index
        if self._is_unwanted(index):
            call.cancel()

    def cancel(self, index: int) -> bool:
        """A request was cancelled; False if that was known."""
        if index in self.cancelled:
            return False
        self.cancelled.add(index)
        for call, whose in self.calls.items():
            if self._is_unwanted(whose):
                call.cancel()
        return True

    def _is_unwanted(self, index: int) -> bool:
        return index in self.cancelled if index != WHOLE_BATCH else len(self.cancelled) == len(self.requests)
