"""Batch: the record of one batch, its states, and the moves between them. Pure.

A batch is first a file that is read and checked line by line, then a job (of the same id) whose items are the lines,
and at last two files: the answers, and what has failed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from protocol.jobs.job import Counts, Job
from protocol.jobs.states import IllegalMove, JobState
from protocol.jobs.webhook import Webhook

# The kind of the jobs that batches are (`Job.kind`).
BATCH_KIND = "batch"


class BatchState(StrEnum):
    """As OpenAI names them."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_ended(self) -> bool:
        return not BATCH_MOVES[self]


# A batch whose job has expired, or was cancelled, has files to be written as every other: what was done is kept.
BATCH_MOVES: Mapping[BatchState, frozenset[BatchState]] = {
    BatchState.VALIDATING: frozenset({BatchState.FAILED, BatchState.IN_PROGRESS, BatchState.CANCELLING}),
    BatchState.IN_PROGRESS: frozenset({BatchState.FINALIZING, BatchState.CANCELLING}),
    BatchState.FINALIZING: frozenset({BatchState.COMPLETED, BatchState.EXPIRED}),
    BatchState.CANCELLING: frozenset({BatchState.CANCELLED}),
    BatchState.FAILED: frozenset(),
    BatchState.COMPLETED: frozenset(),
    BatchState.EXPIRED: frozenset(),
    BatchState.CANCELLED: frozenset(),
}


# How a batch ends, as a job does; which is what webhooks are asked for.
BATCH_ENDS: Mapping[BatchState, JobState] = {
    BatchState.COMPLETED: JobState.SUCCEEDED,
    BatchState.FAILED: JobState.FAILED,
    BatchState.EXPIRED: JobState.EXPIRED,
    BatchState.CANCELLED: JobState.CANCELLED,
}
BATCH_EVENTS: Mapping[str, JobState] = {f"batch.{state}": job for state, job in BATCH_ENDS.items()}


@dataclass(frozen=True, slots=True)
class LineError:
    """What is wrong with the input: `line` counts from 1, 0 for the whole file; `param` is the field."""

    code: str
    message: str
    line: int = 0
    param: str | None = None


@dataclass(frozen=True, slots=True)
class LineCounts:
    """How many lines there are, were answered, and have failed."""

    total: int = 0
    completed: int = 0
    failed: int = 0

    @classmethod
    def of(cls, counts: Counts) -> LineCounts:
        """Those of a job. A line that did not run has not failed."""
        return cls(counts.total, counts.succeeded, counts.failed)


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of all answers together."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, as the store has it. Times are in seconds since the epoch.

    Attributes:
        owner: the name of the key that made it; for all others it does not exist.
        input_payload: the file in the store.
        deadline: when what has not been answered expires.
        times: when it has come to each state.
        output_seconds: how long its files are kept; 0 for as long as others.
        model: that of all its lines, as the client names it; empty until they have been read.
        counts: once it has ended; before, its job has them.
        webhook: who is to be told of its end.
    """

    id: str
    owner: str
    endpoint: str
    input_file: str
    input_payload: str
    created: float
    deadline: float
    state: BatchState = BatchState.VALIDATING
    times: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    output_seconds: float = 0.0
    model: str = ""
    errors: tuple[LineError, ...] = ()
    counts: LineCounts = LineCounts()
    usage: TokenUsage | None = None
    output_file: str = ""
    error_file: str = ""
    webhook: Webhook | None = None

    @property
    def ended(self) -> float:
        """0 until it has."""
        return self.times[self.state] if self.state.is_ended else 0.0

    def moved(self, state: BatchState, now: float) -> Batch:
        """Raises IllegalMove."""
        if state not in BATCH_MOVES[self.state]:
            raise IllegalMove(f"a batch cannot go from {self.state} to {state}")
        return replace(self, state=state, times={**self.times, state: now})

    def cancelled(self, now: float) -> Batch:
        """As a client cancels it; one that writes its files, or has ended, stays as it is."""
        if BatchState.CANCELLING not in BATCH_MOVES[self.state]:
            return self
        return self.moved(BatchState.CANCELLING, now)

    def finalizing(self, now: float) -> Batch:
        """Its job has ended. One that was cancelled goes on being so."""
        return self.moved(BatchState.FINALIZING, now) if self.state is BatchState.IN_PROGRESS else self

    def end_of(self, job: JobState) -> BatchState:
        """How it ends whose job has ended so."""
        if self.state is BatchState.CANCELLING:
            return BatchState.CANCELLED
        return BatchState.EXPIRED if job is JobState.EXPIRED else BatchState.COMPLETED

    def as_ended_job(self) -> Job:
        """What a delivery has of one that has ended: a job of its kind, whose state is the batch's end."""
        counts = Counts(succeeded=self.counts.completed, failed=self.counts.failed)
        return Job(
            self.id,
            self.owner,
            self.model,
            -1,
            BATCH_ENDS[self.state],
            counts,
            self.created,
            self.deadline,
            ended=self.ended,
            kind=BATCH_KIND,
        )


def new_batch_id(now: float) -> str:
    """Ids sort by when they were made, and cannot be guessed."""
    return f"batch_{int(now * 1000):012x}{secrets.token_hex(10)}"
