"""Job: the record of one job, and the counts of its items. Pure.

A job has items, each a request to a model; a job of one request has one. The job's state follows from what has become
of its items (`ended_state`), and from whether it was cancelled.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.errors import InvalidArgument
from protocol.jobs.source import JobSource
from protocol.jobs.states import JobState

# Characters of a client's own name of an item.
MAX_CUSTOM_ID = 512


@dataclass(frozen=True, slots=True)
class Counts:
    """How many items of a job are in each state."""

    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0

    @property
    def total(self) -> int:
        return self.left + self.ended

    @property
    def left(self) -> int:
        return self.queued + self.running

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.cancelled + self.expired


@dataclass(frozen=True, slots=True)
class Job:
    """One job, as the store has it. Times are in seconds since the epoch.

    Attributes:
        owner: the name of the key that made it; for all others it does not exist.
        model: that of its items; empty where they have several.
        version: as the client gave it, -1 for the latest.
        deadline: when it expires if it has not ended.
        ended: 0 until it has.
        byte_size: of its requests and results.
        metadata: the client's own.
        error: why an item has failed, or is to be tried again, the last that did; None where all is well.
        kind: what its items are: empty for inference requests; of others the executor of that name runs them, and their
            own interface shows them.
        source: of a job whose items come one after the other, where from, and where their results go; else None.
        written: of such a job, of how many items the results are there.
    """

    id: str
    owner: str
    model: str
    version: int
    state: JobState
    counts: Counts
    created: float
    deadline: float
    started: float = 0.0
    ended: float = 0.0
    byte_size: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    error: ItemError | None = None
    kind: str = ""
    source: JobSource | None = None
    written: int = 0


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why an item has failed: `kind` is that of a `protocol.errors.ServerError`, `message` its text, of which what has
    no encoding is replaced: a model's own text may hold half of a surrogate pair."""

    kind: str
    message: str

    def __post_init__(self) -> None:
        if not self.message.isascii():
            object.__setattr__(self, "message", self.message.encode("utf-8", "replace").decode())


def check_custom_id(custom_id: str) -> None:
    """A client's own name of an item. Raises InvalidArgument."""
    if len(custom_id) > MAX_CUSTOM_ID:
        raise InvalidArgument(
            f"'custom_id': expected a text of at most {MAX_CUSTOM_ID} characters, got {custom_id!r:.60}"
        )
    try:
        custom_id.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"'custom_id': {custom_id!a:.60} has half of a surrogate pair") from None


def ended_state(state: JobState, counts: Counts) -> JobState:
    """How a job ends whose last item has ended.

    One that was cancelled stays so whatever its last items did; one with items that expired has expired; one has failed
    if it has items and none succeeded. Else it has succeeded, and its counts tell how many items have failed.
    """
    if state is JobState.CANCELLING or counts.cancelled:
        return JobState.CANCELLED
    if counts.expired:
        return JobState.EXPIRED
    return JobState.SUCCEEDED if counts.succeeded or not counts.total else JobState.FAILED


def new_job_id(now: float) -> str:
    """Ids sort by when they were made, and cannot be guessed."""
    return f"job_{int(now * 1000):012x}{secrets.token_hex(10)}"
