"""Room in the job store: what is forgotten so that there is room for more. Blocks; within a transaction of the caller.

Files that go with a row are named in what a function returns: they may go when the transaction is on the disk.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TypeAlias

from actors.jobs.sqlite.rows import count_job
from protocol.errors import InsufficientStorage
from protocol.jobs.states import JobState
from protocol.jobs.store import Limits

Files: TypeAlias = list[str]

# What no call looks at more of at once: others wait meanwhile.
MOST_AT_ONCE = 64
# What a row that a client can make counts beside what is in it.
ROW_BYTES = 512
# Of a job: its batch has still to write its files from it.
NOT_HELD = "NOT EXISTS (SELECT 1 FROM batches WHERE batches.id = jobs.id AND batches.ended = 0)"


def make_room(db: sqlite3.Connection, size: int, limits: Limits, what: str = "the job") -> Files:
    """Forget jobs that have ended, the oldest first, then files that batches have read or given, until so many bytes
    more have room. Raises InsufficientStorage."""
    room = free_some(db, size, limits)
    if room.left < size:
        raise no_room(size, room, limits, what)
    return room.dropped


@dataclass(frozen=True, slots=True)
class Room:
    """How many bytes are left, whether there is more that could be forgotten, and the files that may go."""

    left: int
    may_grow: bool
    dropped: Files


def free_some(db: sqlite3.Connection, size: int, limits: Limits) -> Room:
    """As `make_room`, as far as one call goes."""
    dropped: Files = []
    for _ in range(MOST_AT_ONCE):
        (held,) = db.execute("SELECT bytes FROM totals").fetchone()
        oldest = None if held + size <= limits.byte_size or size > limits.byte_size else _forget_oldest(db)
        if oldest is None:
            return Room(limits.byte_size - held, False, dropped)
        dropped += oldest
    (held,) = db.execute("SELECT bytes FROM totals").fetchone()
    return Room(limits.byte_size - held, True, dropped)


def no_room(size: int, room: Room, limits: Limits, what: str) -> InsufficientStorage:
    return InsufficientStorage(
        f"{what} has {size} bytes and the jobs and files that are kept hold {limits.byte_size - room.left} of "
        f"{limits.byte_size}. Use --jobs-max-bytes to keep more."
    )


def unused_bytes(db: sqlite3.Connection) -> int:
    """What the database's file has for rows without growing: it never becomes smaller when rows are deleted."""
    (pages,) = db.execute("PRAGMA freelist_count").fetchone()
    (size,) = db.execute("PRAGMA page_size").fetchone()
    return int(pages * size)


def _forget_oldest(db: sqlite3.Connection) -> Files | None:
    row = db.execute(f"SELECT number FROM jobs WHERE ended > 0 AND {NOT_HELD} ORDER BY ended LIMIT 1").fetchone()
    if row is not None:
        return forget(db, row[0])
    row = db.execute("SELECT id FROM files WHERE spent > 0 ORDER BY spent LIMIT 1").fetchone()
    return None if row is None else [forget_file(db, row[0])]


def forget(db: sqlite3.Connection, number: int) -> Files:
    """A job that has ended."""
    rows = db.execute(
        "SELECT request_file, result_file FROM items WHERE job = ? "
        "AND (request_file IS NOT NULL OR result_file IS NOT NULL)",
        (number,),
    ).fetchall()
    state, size = db.execute("SELECT state, bytes FROM jobs WHERE number = ?", (number,)).fetchone()
    db.execute("DELETE FROM items WHERE job = ?", (number,))
    db.execute("DELETE FROM jobs WHERE number = ?", (number,))
    count_total(db, -size)
    count_job(db, JobState(state), -1)
    return [file for row in rows for file in row if file is not None]


def forget_file(db: sqlite3.Connection, file_id: str) -> str:
    payload, size = db.execute("SELECT payload, bytes FROM files WHERE id = ?", (file_id,)).fetchone()
    db.execute("DELETE FROM files WHERE id = ?", (file_id,))
    count_total(db, -size - ROW_BYTES)
    return str(payload)


def count_total(db: sqlite3.Connection, more: int) -> None:
    db.execute("UPDATE totals SET bytes = bytes + ?", (more,))
