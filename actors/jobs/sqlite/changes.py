"""What changes the job store: each a function on its connection, within a transaction of the caller. Blocks.

A function raises before it has changed anything, or SQLite does, and the caller rolls back. Files that a function
unlinks are named in what it returns: they may go when the transaction is on the disk.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actors.jobs.sqlite.batches import forget_old
from actors.jobs.sqlite.deliveries import check_room, encode_webhook
from actors.jobs.sqlite.deliveries import recover as recover_deliveries
from actors.jobs.sqlite.room import MOST_AT_ONCE, NOT_HELD, Files, forget, make_room
from actors.jobs.sqlite.rows import (
    SELECT_JOB,
    count_bytes,
    count_items,
    count_job,
    end_if_done,
    find_job,
    job_of,
    job_row,
    move_items,
    move_job,
)
from actors.jobs.sqlite.schema import SUSPECT
from protocol.jobs.job import Job
from protocol.jobs.states import JobState, check_item_move
from protocol.jobs.store import Claim, IdempotencyMismatch, Limits, NewItem, NewJob, Outcome

QUEUED, RUNNING = JobState.QUEUED, JobState.RUNNING


@dataclass(frozen=True, slots=True)
class Kept:
    """The bytes of a request or result: here, or in a file of that name."""

    size: int
    data: bytes | None
    file: str | None


NOTHING = Kept(0, None, None)


def add(
    db: sqlite3.Connection, new: NewJob, requests: Sequence[Kept], limits: Limits, now: float
) -> tuple[Job, bool, Files]:
    """Raises InsufficientStorage, IdempotencyMismatch, Overloaded."""
    if (known := _known(db, new)) is not None:
        return known, False, []
    if new.webhook is not None:
        check_room(db, new.owner)
    size = sum(request.size for request in requests)
    dropped = make_room(db, size, limits)
    number = db.execute(
        "INSERT INTO jobs (id, owner, model, version, state, queued, created, deadline, bytes, metadata, "
        "idempotency_key, fingerprint, kind, source, webhook) "
        "VALUES (?, ?, ?, ?, ?, 0, ?, ?, 0, ?, ?, ?, ?, ?, ?)",
        (
            new.id,
            new.owner,
            new.model,
            new.version,
            QUEUED,
            now,
            new.deadline,
            json.dumps(dict(new.metadata)),
            new.key or None,
            new.fingerprint,
            new.kind,
            None if new.source is None else new.source.encode().decode(),
            encode_webhook(new.webhook),
        ),
    ).lastrowid
    assert number is not None
    count_job(db, QUEUED, 1)
    add_items(db, number, 0, new.items, requests, now)
    return job_of(db, number), True, dropped


def add_items(
    db: sqlite3.Connection, number: int, first: int, items: Sequence[NewItem], requests: Sequence[Kept], now: float
) -> None:
    rows = (  # one after the other: between two of them the server's loop may go on
        (
            number,
            place,
            item.model,
            QUEUED if item.error is None else JobState.FAILED,
            now,
            item.custom_id,
            item.form,
            kept.data,
            kept.file,
            kept.size,
            *((None, None) if item.error is None else (item.error.kind, item.error.message)),
        )
        for place, (item, kept) in enumerate(zip(items, requests, strict=True), start=first)
    )
    db.executemany(
        "INSERT INTO items (job, place, model, state, not_before, custom_id, form, request, request_file, "
        "request_bytes, error_kind, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    failed = sum(item.error is not None for item in items)
    db.execute(
        "UPDATE jobs SET queued = queued + ?, failed = failed + ? WHERE number = ?",
        (len(items) - failed, failed, number),
    )
    count_bytes(db, number, sum(kept.size for kept in requests))


def _known(db: sqlite3.Connection, new: NewJob) -> Job | None:
    if not new.key:
        return None
    row = db.execute(
        "SELECT number, fingerprint FROM jobs WHERE owner = ? AND idempotency_key = ?", (new.owner, new.key)
    ).fetchone()
    if row is None:
        return None
    number, fingerprint = row
    if fingerprint != new.fingerprint:
        raise IdempotencyMismatch(
            f"Idempotency-Key '{new.key[:64]}' was used for another request; it may come again with the same one"
        )
    return job_of(db, number)


def claim(db: sqlite3.Connection, room: Mapping[str, int], default: int, now: float) -> list[Claim]:
    """While there are suspects, each runs alone: what crashes the server shall not take others with it."""
    if db.execute(f"SELECT 1 FROM items WHERE state = '{RUNNING}' AND interrupted >= {SUSPECT} LIMIT 1").fetchone():
        return []
    if (suspect := _suspect(db, now)) is not None:
        runs = db.execute(f"SELECT 1 FROM items WHERE state = '{RUNNING}' LIMIT 1").fetchone()
        return [] if runs else _claim(db, "number = ?", (suspect,), 1, now)
    claimed: list[Claim] = []
    for model in _queued_models(db):
        limit = room.get(model, default)
        if limit > 0:
            claimed += _claim(db, "model = ?", (model,), limit, now)
    return claimed


def _queued_models(db: sqlite3.Connection) -> list[str]:
    """Each by one look into the index, however many items there are."""
    first = f"SELECT min(model) FROM items WHERE state = '{QUEUED}'"
    rows = db.execute(
        f"WITH RECURSIVE found (model) AS ({first} UNION ALL SELECT ({first} AND model > found.model) FROM found "
        f"WHERE found.model IS NOT NULL) SELECT model FROM found WHERE model IS NOT NULL"
    )
    return [model for (model,) in rows]


def _suspect(db: sqlite3.Connection, now: float) -> int | None:
    row = db.execute(
        f"SELECT number FROM items WHERE state = '{QUEUED}' AND interrupted >= {SUSPECT} AND not_before <= ? "
        f"ORDER BY not_before, number LIMIT 1",
        (now,),
    ).fetchone()
    return None if row is None else int(row[0])


def _claim(db: sqlite3.Connection, which: str, values: tuple[str | int, ...], limit: int, now: float) -> list[Claim]:
    rows = db.execute(
        f"UPDATE items SET state = '{RUNNING}', claim = claim + 1, attempt = attempt + 1 WHERE number IN ("
        f"SELECT number FROM items WHERE state = '{QUEUED}' AND {which} AND not_before <= ? "
        f"ORDER BY not_before, number LIMIT ?) RETURNING job, place, claim, attempt, model, request, "
        f"request_file, request_bytes, number",
        (*values, now, limit),
    ).fetchall()
    rows.sort(key=lambda row: row[-1])
    jobs: dict[int, Job] = {}
    for number in dict.fromkeys(row[0] for row in rows):
        count_items(db, number, QUEUED, RUNNING, sum(1 for row in rows if row[0] == number))
        jobs[number] = job = job_of(db, number)
        if job.state is QUEUED:
            move_job(db, number, QUEUED, RUNNING, now)
    return [
        Claim(
            jobs[job].id,
            jobs[job].owner,
            place,
            claim,
            attempt,
            model,
            jobs[job].deadline,
            size,
            request or b"",
            file or "",
            jobs[job].kind,
        )
        for job, place, claim, attempt, model, request, file, size, _ in rows
    ]


def finish(
    db: sqlite3.Connection, outcomes: Sequence[Outcome], results: Sequence[Kept], now: float
) -> tuple[list[Job | None], Files]:
    """The results and the ends of items in one go; each's job as it is then. One whose claim is not the current one
    changes nothing: None, and its result's file may go.

    All of them in a few statements: SQLite gives the interpreter back while it works on one, so that the server's loop
    hardly waits for this thread.
    """
    ended = _current(db, outcomes)
    dropped = [result.file for place, result in enumerate(results) if place not in ended and result.file is not None]
    moved: Counter[tuple[int, JobState]] = Counter()
    sizes: Counter[int] = Counter()
    errors: dict[int, tuple[str, str]] = {}
    for place, (number, new) in ended.items():
        check_item_move(RUNNING, new)
        moved[number, new] += 1
        sizes[number] += results[place].size
        if (error := outcomes[place].error) is not None:
            errors[number] = error.kind, error.message
    if ended:
        _end_items(db, ended, outcomes, results, now)
    for number, text in errors.items():
        db.execute("UPDATE jobs SET error_kind = ?, error = ? WHERE number = ?", (*text, number))
    for (number, new), count in moved.items():
        count_items(db, number, RUNNING, new, count)
    for number, size in sizes.items():
        if size:
            count_bytes(db, number, size)
    jobs = {number: end_if_done(db, number, now) for number in sizes}
    return [jobs[ended[place][0]] if place in ended else None for place in range(len(outcomes))], dropped


def _current(db: sqlite3.Connection, outcomes: Sequence[Outcome]) -> dict[int, tuple[int, JobState]]:
    """By the places of the outcomes whose claims are current: their job's number, and what their items become."""
    claims = {(each.job_id, each.index, each.claim): place for place, each in reversed([*enumerate(outcomes)])}
    values = [value for (job_id, index, claim), place in claims.items() for value in (place, job_id, index, claim)]
    rows = db.execute(
        f"WITH told (nth, id, place, claim) AS (VALUES {_marks(4, len(claims))}) "
        "SELECT jobs.number, jobs.state, group_concat(nth) FROM told CROSS JOIN jobs ON jobs.id = told.id "
        "CROSS JOIN items ON items.job = jobs.number AND items.place = told.place AND items.claim = told.claim "
        f"WHERE items.state = '{RUNNING}' GROUP BY jobs.number",
        values,
    ).fetchall()
    found: dict[int, tuple[int, JobState]] = {}
    for number, job_state, places in rows:
        for place in map(int, places.split(",")):
            is_cut = outcomes[place].state is QUEUED and job_state == JobState.CANCELLING
            found[place] = number, JobState.CANCELLED if is_cut else outcomes[place].state
    return dict(sorted(found.items()))


def _end_items(
    db: sqlite3.Connection,
    ended: Mapping[int, tuple[int, JobState]],
    outcomes: Sequence[Outcome],
    results: Sequence[Kept],
    now: float,
) -> None:
    values: list[str | float | bytes | None] = []
    for place, (number, new) in ended.items():
        outcome, result = outcomes[place], results[place]
        kind, text = (None, None) if outcome.error is None else (outcome.error.kind, outcome.error.message)
        values += number, outcome.index, new, result.data, result.file, result.size
        values += kind, text, outcome.not_before or now, int(not outcome.is_counted)
    db.execute(
        "WITH told (job, place, state, result, file, bytes, error_kind, error, not_before, uncounted) "
        f"AS (VALUES {_marks(10, len(ended))}) UPDATE items SET state = told.state, result = told.result, "
        "result_file = told.file, result_bytes = told.bytes, error_kind = told.error_kind, error = told.error, "
        "not_before = told.not_before, attempt = attempt - told.uncounted FROM told "
        "WHERE items.job = told.job AND items.place = told.place",
        values,
    )


def _marks(columns: int, rows: int) -> str:
    """Of so many values."""
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * rows)


def cancel(db: sqlite3.Connection, owner: str, job_id: str, now: float) -> Job | None:
    found = find_job(db, owner, job_id)
    if found is None or found.job.state.is_ended or found.job.state is JobState.CANCELLING:
        return None if found is None else found.job
    move_items(db, found.number, QUEUED, JobState.CANCELLED)
    if found.job.source is not None and found.job.state is QUEUED:  # what is done of it is still to be written
        move_job(db, found.number, QUEUED, RUNNING, now)
        move_job(db, found.number, RUNNING, JobState.CANCELLING, now)
    elif found.job.state is RUNNING:
        move_job(db, found.number, RUNNING, JobState.CANCELLING, now)
    return end_if_done(db, found.number, now)


def remove(db: sqlite3.Connection, owner: str, job_id: str) -> tuple[bool, Files]:
    found = find_job(db, owner, job_id)
    if found is None or not found.job.state.is_ended:
        return False, []
    return True, forget(db, found.number)


def expire(db: sqlite3.Connection, limits: Limits, now: float) -> tuple[list[str], Files]:
    """Returns the ids of jobs that have ended by it."""
    late = db.execute(
        f"{SELECT_JOB} WHERE ended = 0 AND deadline <= ? AND queued > 0 ORDER BY deadline LIMIT ?",
        (now, MOST_AT_ONCE),
    ).fetchall()
    ended: list[str] = []
    for row in map(job_row, late):
        move_items(db, row.number, QUEUED, JobState.EXPIRED)
        if end_if_done(db, row.number, now).state.is_ended:
            ended.append(row.job.id)
    old = db.execute(
        f"SELECT number FROM jobs WHERE ended > 0 AND ended <= ? AND {NOT_HELD} ORDER BY ended LIMIT ?",
        (now - limits.keep_seconds, MOST_AT_ONCE),
    ).fetchall()
    dropped: Files = []
    for (number,) in old:
        dropped += forget(db, number)
    return ended, [*dropped, *forget_old(db, now)]


def recover(db: sqlite3.Connection, limits: Limits, now: float) -> int:
    """Nothing runs when a server starts: what did is queued again, cancelled with its job, or has failed where it has
    been interrupted too often. Returns how many items were queued again."""
    requeued = 0
    recover_deliveries(db, now)
    db.execute(f"UPDATE items SET interrupted = interrupted + 1 WHERE state = '{RUNNING}'")
    for (number,) in db.execute(f"SELECT DISTINCT job FROM items WHERE state = '{RUNNING}'").fetchall():
        job = job_of(db, number)
        if job.state is JobState.CANCELLING:
            move_items(db, number, RUNNING, JobState.CANCELLED)
        else:
            _fail_interrupted(db, number, limits)
            requeued += move_items(db, number, RUNNING, QUEUED)
        if (job := end_if_done(db, number, now)).state is RUNNING:
            move_job(db, number, RUNNING, QUEUED, now)
    for row in map(job_row, db.execute(f"{SELECT_JOB} WHERE ended = 0 AND state = '{RUNNING}'").fetchall()):
        move_job(db, row.number, RUNNING, QUEUED, now)  # none of its items ran, some were to be tried again
    return requeued


def _fail_interrupted(db: sqlite3.Connection, number: int, limits: Limits) -> None:
    text = f"the server ended {limits.max_interruptions} times while this ran; see --jobs-max-interruptions"
    where = f" AND interrupted >= {limits.max_interruptions}"
    db.execute(
        f"UPDATE items SET error_kind = 'INTERNAL', error = ? WHERE job = ? AND state = '{RUNNING}'{where}",
        (text, number),
    )
    if move_items(db, number, RUNNING, JobState.FAILED, where):
        db.execute("UPDATE jobs SET error_kind = 'INTERNAL', error = ? WHERE number = ?", (text, number))
