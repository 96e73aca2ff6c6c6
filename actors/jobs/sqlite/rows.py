"""Rows of the job store's tables as the records of `protocol.jobs`, and what changes one in them.

Every change of a state goes by `move_job` and `move_items`, which hold it to the tables of legal moves and keep the
counts right, and the deliveries that follow from it. Blocks; within a transaction of the caller.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.jobs.sqlite.deliveries import is_told, keep
from protocol.jobs.job import Counts, ItemError, Job, ended_state
from protocol.jobs.source import JobSource
from protocol.jobs.states import JOB_MOVES, JobState, check_item_move, check_job_move

_COLUMNS = (
    "id, owner, model, version, state, queued, running, succeeded, failed, cancelled, expired, created, deadline, "
    "started, ended, bytes, metadata, error_kind, error, kind, source, written, number"
)
SELECT_JOB = f"SELECT {_COLUMNS} FROM jobs"


@dataclass(slots=True)
class JobRow:
    """A job, and its number in the database."""

    job: Job
    number: int


def job_row(row: Sequence[Any]) -> JobRow:
    (id, owner, model, version, state, *counts) = row[:11]
    created, deadline, started, ended, byte_size, metadata, error_kind, error, kind, source, written, number = row[11:]
    job = Job(
        id=id,
        owner=owner,
        model=model,
        version=version,
        state=JobState(state),
        counts=Counts(*counts),
        created=created,
        deadline=deadline,
        started=started,
        ended=ended,
        byte_size=byte_size,
        metadata=json.loads(metadata),
        error=None if error_kind is None else ItemError(error_kind, error),
        kind=kind,
        source=None if source is None else JobSource.decode(source),
        written=written,
    )
    return JobRow(job, number)


def find_job(db: sqlite3.Connection, owner: str | None, job_id: str) -> JobRow | None:
    """Without an owner, that of any."""
    row = db.execute(f"{SELECT_JOB} WHERE id = ? AND owner = ifnull(?, owner)", (job_id, owner)).fetchone()
    return None if row is None else job_row(row)


def job_of(db: sqlite3.Connection, number: int) -> Job:
    return job_row(db.execute(f"{SELECT_JOB} WHERE number = ?", (number,)).fetchone()).job


def count_job(db: sqlite3.Connection, state: JobState, more: int) -> None:
    db.execute(
        "INSERT INTO job_counts VALUES (?, ?) ON CONFLICT (state) DO UPDATE SET jobs = jobs + excluded.jobs",
        (state, more),
    )


def count_bytes(db: sqlite3.Connection, number: int, more: int) -> None:
    """A job has grown."""
    db.execute("UPDATE jobs SET bytes = bytes + ? WHERE number = ?", (more, number))
    db.execute("UPDATE totals SET bytes = bytes + ?", (more,))


def move_job(db: sqlite3.Connection, number: int, old: JobState, new: JobState, now: float) -> None:
    check_job_move(old, new)
    times = {JobState.RUNNING: ", started = max(started, ?)"}.get(new, ", ended = ?" if new.is_ended else "")
    (webhook,) = db.execute(
        f"UPDATE jobs SET state = ?{times} WHERE number = ? RETURNING webhook",
        (new, *((now,) if times else ()), number),
    ).fetchone()
    count_job(db, old, -1)
    count_job(db, new, 1)
    if webhook is not None and is_told(webhook, new):
        keep(db, webhook, job_of(db, number), now)


def move_items(db: sqlite3.Connection, number: int, old: JobState, new: JobState, where: str = "") -> int:
    """Move all items of a job that are in a state, and count them; returns how many there were."""
    check_item_move(old, new)
    moved = db.execute(f"UPDATE items SET state = ? WHERE job = ? AND state = '{old}'{where}", (new, number)).rowcount
    count_items(db, number, old, new, moved)
    return moved


def count_items(db: sqlite3.Connection, number: int, old: JobState, new: JobState, moved: int) -> None:
    if moved:
        db.execute(f"UPDATE jobs SET {old} = {old} - ?, {new} = {new} + ? WHERE number = ?", (moved, moved, number))


def end_if_done(db: sqlite3.Connection, number: int, now: float) -> Job:
    """End a job whose last item has ended, but one to which more may come; returns it as it is then."""
    job = job_of(db, number)
    if job.counts.left or job.state.is_ended or job.source is not None:
        return job
    end_job(db, number, job, ended_state(job.state, job.counts), now)
    return job_of(db, number)


def end_job(db: sqlite3.Connection, number: int, job: Job, new: JobState, now: float) -> None:
    """End a job that has no item left, by legal moves."""
    if not job.counts.failed and new is JobState.SUCCEEDED:  # why items were tried again does not matter any more
        db.execute("UPDATE jobs SET error_kind = NULL, error = NULL WHERE number = ?", (number,))
    old = job.state
    if old is JobState.QUEUED and new not in JOB_MOVES[old]:
        move_job(db, number, old, JobState.RUNNING, now)
        old = JobState.RUNNING
    if old is JobState.RUNNING and new is JobState.CANCELLED:
        move_job(db, number, old, JobState.CANCELLING, now)
        old = JobState.CANCELLING
    move_job(db, number, old, new, now)
