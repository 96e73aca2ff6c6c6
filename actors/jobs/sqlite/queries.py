"""What is read from the job store: each a function on its connection. Blocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from actors.jobs.sqlite.rows import SELECT_JOB, job_row
from protocol.jobs.job import ItemError, Job
from protocol.jobs.states import JobState
from protocol.jobs.store import Item, JobFilter, StoreFigures

# Bytes of results that are read at once, about.
_MOST_RESULT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ItemRow:
    """An item whose result may be in a file."""

    item: Item
    file: str | None


def jobs(db: sqlite3.Connection, owner: str, which: JobFilter, after: str, limit: int) -> Sequence[Job]:
    conditions, values = ["owner = ?", "kind = ?"], [owner, which.kind]
    if after:
        conditions.append("id < ?")
        values.append(after)
    if which.states:
        conditions.append(f"state IN ({', '.join('?' * len(which.states))})")
        values += which.states
    if which.model:
        conditions.append("model = ?")
        values.append(which.model)
    rows = db.execute(
        f"{SELECT_JOB} WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT ?", (*values, limit)
    ).fetchall()
    return [job_row(row).job for row in rows]


def items(db: sqlite3.Connection, job_id: str, first: int, limit: int, results: bool) -> Sequence[ItemRow]:
    columns = "result, result_file" if results else "NULL, NULL"
    cursor = db.execute(
        f"SELECT place, custom_id, items.model, items.state, attempt, form, items.error_kind, items.error, {columns} "
        "FROM items JOIN jobs ON jobs.number = items.job WHERE jobs.id = ? AND place >= ? ORDER BY place LIMIT ?",
        (job_id, first, limit),
    )
    found: list[ItemRow] = []
    size = 0
    for place, custom_id, model, state, attempt, form, kind, error, result, file in cursor:
        why = None if kind is None else ItemError(kind, error)
        found.append(ItemRow(Item(place, custom_id, model, JobState(state), attempt, form, result, why), file))
        size += 0 if result is None else len(result)
        if size > _MOST_RESULT_BYTES or file is not None:
            cursor.close()
            break
    return found


def figures(db: sqlite3.Connection) -> StoreFigures:
    counts = {JobState(state): count for state, count in db.execute("SELECT state, jobs FROM job_counts")}
    (oldest,) = db.execute("SELECT min(created) FROM jobs WHERE ended = 0").fetchone()
    return StoreFigures({state: counts.get(state, 0) for state in JobState}, oldest or 0.0, kept_bytes(db))


def kept_bytes(db: sqlite3.Connection) -> int:
    (size,) = db.execute("SELECT bytes FROM totals").fetchone()
    return int(size)


def files(db: sqlite3.Connection) -> set[str]:
    """All that rows name."""
    rows = db.execute(
        "SELECT request_file FROM items WHERE request_file IS NOT NULL "
        "UNION SELECT result_file FROM items WHERE result_file IS NOT NULL UNION SELECT payload FROM files"
    )
    return {name for (name,) in rows}
