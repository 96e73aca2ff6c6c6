"""The states of jobs and of their items, and the table of the moves between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class JobState(StrEnum):
    """What has become of a job. An item is in one of these states too, except CANCELLING."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_ended(self) -> bool:
        return not JOB_MOVES[self]


# A job that is cancelled or past its deadline ends at once where none of its items runs. The server's end makes
# `running` into `queued`.
JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.EXPIRED}),
    JobState.RUNNING: frozenset(
        {JobState.QUEUED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLING, JobState.EXPIRED}
    ),
    JobState.CANCELLING: frozenset({JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.EXPIRED: frozenset(),
}

# An item that ran goes back into the queue where its model was not available, or the server ended.
ITEM_MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.EXPIRED}),
    JobState.RUNNING: frozenset(
        {JobState.QUEUED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}
    ),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.EXPIRED: frozenset(),
}

ITEM_STATES = tuple(ITEM_MOVES)


class IllegalMove(AssertionError):
    """A defect: the table has no such move."""


def check_job_move(old: JobState, new: JobState) -> None:
    """Raises IllegalMove."""
    if new not in JOB_MOVES[old]:
        raise IllegalMove(f"a job cannot go from {old} to {new}")


def check_item_move(old: JobState, new: JobState) -> None:
    """Raises IllegalMove."""
    if new not in ITEM_MOVES.get(old, frozenset()):
        raise IllegalMove(f"an item of a job cannot go from {old} to {new}")
