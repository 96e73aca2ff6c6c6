"""Batches and their files in the job store: each a function on its connection, within a transaction. Blocks.

As in `changes`, a function raises before it has changed anything, and names the files that may go.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from actors.jobs.sqlite.deliveries import check_room, keep_for
from actors.jobs.sqlite.room import MOST_AT_ONCE, ROW_BYTES, Files, count_total, forget, forget_file, make_room
from protocol.errors import InvalidArgument, NotFound
from protocol.jobs.batches.batch import Batch
from protocol.jobs.batches.files import OUTPUT, StoredFile
from protocol.jobs.batches.store import Change
from protocol.jobs.store import IdempotencyMismatch, Limits

_SELECT_FILE = "SELECT id, owner, purpose, name, payload, bytes, created, expires FROM files"
_read_batch = msgspec.msgpack.Decoder(Batch).decode


def add_file(db: sqlite3.Connection, file: StoredFile, limits: Limits) -> Files:
    """Raises InsufficientStorage."""
    dropped = make_room(db, file.byte_size + ROW_BYTES, limits, "the file")
    _insert_file(db, file)
    return dropped


def _insert_file(db: sqlite3.Connection, file: StoredFile) -> None:
    db.execute(
        "INSERT INTO files (id, owner, purpose, name, payload, bytes, created, expires, spent) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            file.id,
            file.owner,
            file.purpose,
            file.name,
            file.payload,
            file.byte_size,
            file.created,
            file.expires,
            file.created if file.purpose == OUTPUT else 0.0,
        ),
    )
    count_total(db, file.byte_size + ROW_BYTES)


def find_file(db: sqlite3.Connection, owner: str, file_id: str) -> StoredFile | None:
    row = db.execute(f"{_SELECT_FILE} WHERE id = ? AND owner = ?", (file_id, owner)).fetchone()
    return None if row is None else StoredFile(*row)


def files(
    db: sqlite3.Connection, owner: str, purpose: str, after: str, limit: int, ascending: bool
) -> Sequence[StoredFile]:
    conditions, values = ["owner = ?"], [owner]
    if after:
        conditions.append("id > ?" if ascending else "id < ?")
        values.append(after)
    if purpose:
        conditions.append("purpose = ?")
        values.append(purpose)
    order = "ASC" if ascending else "DESC"
    rows = db.execute(
        f"{_SELECT_FILE} WHERE {' AND '.join(conditions)} ORDER BY id {order} LIMIT ?", (*values, limit)
    ).fetchall()
    return [StoredFile(*row) for row in rows]


def remove_file(db: sqlite3.Connection, owner: str, file_id: str) -> tuple[bool, Files]:
    """Raises InvalidArgument: a batch reads it."""
    if find_file(db, owner, file_id) is None:
        return False, []
    row = db.execute("SELECT id FROM batches WHERE input_file = ? AND ended = 0", (file_id,)).fetchone()
    if row is not None:
        raise InvalidArgument(
            f"file '{file_id}' is the input of batch '{row[0]}', which has not ended: cancel it first"
        )
    return True, [forget_file(db, file_id)]


def add_batch(
    db: sqlite3.Connection, batch: Batch, key: str, fingerprint: bytes, limits: Limits
) -> tuple[Batch, bool, Files]:
    """Raises NotFound where its input is gone, InsufficientStorage, IdempotencyMismatch, Overloaded."""
    if (known := _known(db, batch.owner, key, fingerprint)) is not None:
        return known, False, []
    if find_file(db, batch.owner, batch.input_file) is None:
        raise NotFound(f"No such File object: {batch.input_file}")
    if batch.webhook is not None:
        check_room(db, batch.owner)
    record = msgspec.msgpack.encode(batch)
    dropped = make_room(db, len(record) + ROW_BYTES, limits, "the batch")
    db.execute("UPDATE files SET spent = 0 WHERE id = ?", (batch.input_file,))
    db.execute(
        "INSERT INTO batches (id, owner, input_file, bytes, record, idempotency_key, fingerprint) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (batch.id, batch.owner, batch.input_file, len(record) + ROW_BYTES, record, key or None, fingerprint),
    )
    count_total(db, len(record) + ROW_BYTES)
    return batch, True, dropped


def _known(db: sqlite3.Connection, owner: str, key: str, fingerprint: bytes) -> Batch | None:
    if not key:
        return None
    row = db.execute(
        "SELECT record, fingerprint FROM batches WHERE owner = ? AND idempotency_key = ?", (owner, key)
    ).fetchone()
    if row is None:
        return None
    record, known = row
    if known != fingerprint:
        raise IdempotencyMismatch(
            f"Idempotency-Key '{key[:64]}' was used for another batch; it may come again with the same request"
        )
    return _read_batch(record)


def find_batch(db: sqlite3.Connection, owner: str, batch_id: str) -> Batch | None:
    row = db.execute("SELECT record FROM batches WHERE id = ? AND owner = ?", (batch_id, owner)).fetchone()
    return None if row is None else _read_batch(row[0])


def batches(db: sqlite3.Connection, owner: str, after: str, limit: int) -> Sequence[Batch]:
    rows = db.execute(
        "SELECT record FROM batches WHERE owner = ? AND (? = '' OR id < ?) ORDER BY id DESC LIMIT ?",
        (owner, after, after, limit),
    ).fetchall()
    return [_read_batch(record) for (record,) in rows]


def unended_batches(db: sqlite3.Connection) -> Sequence[Batch]:
    rows = db.execute("SELECT record FROM batches WHERE ended = 0 ORDER BY number").fetchall()
    return [_read_batch(record) for (record,) in rows]


def change_batch(
    db: sqlite3.Connection, batch_id: str, change: Change, new_files: Sequence[StoredFile], kept_until: float
) -> tuple[Batch | None, bool, Files]:
    """Returns whether it was changed, too: one that has ended stays as it is."""
    row = db.execute("SELECT number, record, bytes FROM batches WHERE id = ?", (batch_id,)).fetchone()
    if row is None:
        return None, False, []
    number, record, size = row
    batch = _read_batch(record)
    if batch.ended:
        return batch, False, []
    batch = change(batch)
    record = msgspec.msgpack.encode(batch)
    db.execute(
        "UPDATE batches SET record = ?, bytes = ?, ended = ?, expires = ? WHERE number = ?",
        (record, len(record) + ROW_BYTES, batch.ended, kept_until, number),
    )
    count_total(db, len(record) + ROW_BYTES - size)
    for file in new_files:
        _insert_file(db, file)
    if batch.ended and batch.webhook is not None and (job := batch.as_ended_job()).state in batch.webhook.states:
        keep_for(db, batch.webhook, job, batch.ended)
    return batch, True, _spend(db, batch) if batch.ended else []


def _spend(db: sqlite3.Connection, batch: Batch) -> Files:
    """A batch has ended: its job is not needed any more, and its input may be forgotten where there is no room."""
    left = db.execute("SELECT 1 FROM batches WHERE input_file = ? AND ended = 0", (batch.input_file,)).fetchone()
    if left is None:
        db.execute("UPDATE files SET spent = ? WHERE id = ?", (batch.ended, batch.input_file))
    row = db.execute("SELECT number FROM jobs WHERE id = ? AND ended > 0", (batch.id,)).fetchone()
    return [] if row is None else forget(db, row[0])


def forget_old(db: sqlite3.Connection, now: float) -> Files:
    """Files and batches that were kept for long enough, some of them."""
    rows = db.execute(
        "SELECT id FROM files WHERE expires <= ? AND NOT EXISTS "
        "(SELECT 1 FROM batches WHERE input_file = files.id AND ended = 0) ORDER BY expires LIMIT ?",
        (now, MOST_AT_ONCE),
    ).fetchall()
    dropped = [forget_file(db, file_id) for (file_id,) in rows]
    old = db.execute(
        "SELECT number, bytes FROM batches WHERE ended > 0 AND expires <= ? ORDER BY expires LIMIT ?",
        (now, MOST_AT_ONCE),
    ).fetchall()
    for number, size in old:
        db.execute("DELETE FROM batches WHERE number = ?", (number,))
        count_total(db, -size)
    return dropped
