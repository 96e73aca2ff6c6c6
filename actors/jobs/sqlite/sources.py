"""What changes jobs with a source in the job store: items that come to them, and go when their results are written.

Each a function on its connection, within a transaction of the caller. Blocks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from actors.jobs.sqlite.changes import Kept, add_items
from actors.jobs.sqlite.room import Files, make_room
from actors.jobs.sqlite.rows import SELECT_JOB, JobRow, count_bytes, end_job, job_of, job_row, move_items
from protocol.jobs.job import ItemError, Job, ended_state
from protocol.jobs.source import Progress
from protocol.jobs.states import JobState
from protocol.jobs.store import Limits, NewItem

_read_progress = msgspec.json.Decoder(Progress).decode


def sources(db: sqlite3.Connection) -> Sequence[tuple[Job, Progress]]:
    rows = db.execute(f"{SELECT_JOB} WHERE source IS NOT NULL AND ended = 0 ORDER BY number").fetchall()
    return [(found.job, _progress(db, found.number)) for found in map(job_row, rows)]


def _progress(db: sqlite3.Connection, number: int) -> Progress:
    (text,) = db.execute("SELECT progress FROM jobs WHERE number = ?", (number,)).fetchone()
    return Progress() if text is None else _read_progress(text)


def extend(
    db: sqlite3.Connection,
    job_id: str,
    items: Sequence[NewItem],
    requests: Sequence[Kept],
    progress: Progress,
    error: ItemError | None,
    limits: Limits,
    now: float,
) -> tuple[Job | None, bool, Files]:
    """Returns whether the items were added."""
    found = _open_job(db, job_id)
    if found is None or found.job.state.is_ended or found.job.state is JobState.CANCELLING:
        return None if found is None else found.job, False, []
    dropped = make_room(db, sum(request.size for request in requests), limits) if items else []
    add_items(db, found.number, progress.position.row - len(items), items, requests, now)
    _keep_progress(db, found.number, progress)
    told = error or next((item.error for item in reversed(items) if item.error is not None), None)
    if told is not None:
        _keep_error(db, found.number, told)
    return job_of(db, found.number), True, dropped


def drain(db: sqlite3.Connection, job_id: str, progress: Progress) -> tuple[Job | None, Files]:
    found = _open_job(db, job_id)
    if found is None:
        return None, []
    dropped = _forget_items(db, found.number, f"place < {progress.written}")
    _keep_progress(db, found.number, progress)
    return job_of(db, found.number), dropped


def close(
    db: sqlite3.Connection, job_id: str, state: JobState | None, error: ItemError | None, now: float
) -> tuple[Job | None, Files]:
    found = _open_job(db, job_id)
    if found is None or found.job.state.is_ended:
        return None if found is None else found.job, []
    move_items(db, found.number, JobState.QUEUED, JobState.CANCELLED)
    job = job_of(db, found.number)
    if job.counts.left:
        return job, []
    dropped = _forget_items(db, found.number, "1")
    if error is not None:
        _keep_error(db, found.number, error)
    is_cancelled = job.state is JobState.CANCELLING
    new = JobState.CANCELLED if is_cancelled else state or ended_state(job.state, job.counts)
    end_job(db, found.number, job, new, now)
    return job_of(db, found.number), dropped


def _open_job(db: sqlite3.Connection, job_id: str) -> JobRow | None:
    row = db.execute(f"{SELECT_JOB} WHERE id = ?", (job_id,)).fetchone()
    return None if row is None else job_row(row)


def _keep_progress(db: sqlite3.Connection, number: int, progress: Progress) -> None:
    text = msgspec.json.encode(progress).decode()
    db.execute("UPDATE jobs SET progress = ?, written = ? WHERE number = ?", (text, progress.written, number))


def _keep_error(db: sqlite3.Connection, number: int, error: ItemError) -> None:
    db.execute("UPDATE jobs SET error_kind = ?, error = ? WHERE number = ?", (error.kind, error.message, number))


def _forget_items(db: sqlite3.Connection, number: int, which: str) -> Files:
    """Items that have ended; what they were counted as stays."""
    rows = db.execute(
        f"DELETE FROM items WHERE job = ? AND {which} "
        "RETURNING request_bytes + result_bytes, request_file, result_file",
        (number,),
    ).fetchall()
    count_bytes(db, number, -sum(size for size, *_ in rows))
    return [file for _, *files in rows for file in files if file is not None]
