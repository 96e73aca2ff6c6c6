"""The tables of the job store, and how a database is opened. Blocks.

The write-ahead log with `synchronous=FULL`: a transaction that has returned is on the disk.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from protocol.jobs.states import JobState
from protocol.jobs.store import UnusableStore

# So many crashes while it ran make an item suspect of causing them.
SUSPECT = 2

_JOBS = f"""
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    model TEXT NOT NULL,
    version INTEGER NOT NULL,
    state TEXT NOT NULL,
    queued INTEGER NOT NULL,
    running INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    deadline REAL NOT NULL,
    started REAL NOT NULL DEFAULT 0,
    ended REAL NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    error_kind TEXT,
    error TEXT,
    idempotency_key TEXT,
    fingerprint BLOB
);
CREATE UNIQUE INDEX jobs_by_idempotency_key ON jobs (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_by_owner ON jobs (owner, id);
CREATE INDEX jobs_that_have_ended ON jobs (ended) WHERE ended > 0;
CREATE INDEX jobs_that_are_left ON jobs (deadline) WHERE ended = 0;
CREATE INDEX jobs_by_age ON jobs (created) WHERE ended = 0;
CREATE TABLE items (
    number INTEGER PRIMARY KEY,
    job INTEGER NOT NULL REFERENCES jobs (number),
    place INTEGER NOT NULL,
    model TEXT NOT NULL,
    state TEXT NOT NULL,
    claim INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    interrupted INTEGER NOT NULL DEFAULT 0,
    not_before REAL NOT NULL,
    custom_id TEXT NOT NULL,
    form BLOB NOT NULL,
    request BLOB,
    request_file TEXT,
    request_bytes INTEGER NOT NULL,
    result BLOB,
    result_file TEXT,
    error_kind TEXT,
    error TEXT,
    UNIQUE (job, place)
);
CREATE INDEX items_that_are_queued ON items (model, not_before) WHERE state = '{JobState.QUEUED}';
CREATE INDEX items_that_are_suspect ON items (not_before)
    WHERE state = '{JobState.QUEUED}' AND interrupted >= {SUSPECT};
CREATE INDEX items_that_run ON items (job) WHERE state = '{JobState.RUNNING}';
CREATE TABLE job_counts (state TEXT PRIMARY KEY, jobs INTEGER NOT NULL);
CREATE TABLE totals (bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0);
"""
_BATCHES = """
ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT '';
CREATE TABLE files (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    purpose TEXT NOT NULL,
    name TEXT NOT NULL,
    payload TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    spent REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX files_by_owner ON files (owner, id);
CREATE INDEX files_by_expiry ON files (expires);
CREATE INDEX files_that_are_spent ON files (spent) WHERE spent > 0;
CREATE TABLE batches (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    input_file TEXT NOT NULL,
    ended REAL NOT NULL DEFAULT 0,
    expires REAL NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL,
    record BLOB NOT NULL
);
CREATE INDEX batches_by_owner ON batches (owner, id);
CREATE INDEX batches_that_are_left ON batches (input_file) WHERE ended = 0;
CREATE INDEX batches_by_expiry ON batches (expires) WHERE ended > 0;
"""
_SOURCES = """
ALTER TABLE jobs ADD COLUMN source TEXT;
ALTER TABLE jobs ADD COLUMN progress TEXT;
ALTER TABLE jobs ADD COLUMN written INTEGER NOT NULL DEFAULT 0;
ALTER TABLE items ADD COLUMN result_bytes INTEGER NOT NULL DEFAULT 0;
CREATE INDEX jobs_with_a_source ON jobs (number) WHERE source IS NOT NULL AND ended = 0;
"""
_WEBHOOKS = """
ALTER TABLE jobs ADD COLUMN webhook BLOB;
CREATE TABLE deliveries (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    url TEXT NOT NULL,
    host TEXT NOT NULL,
    state TEXT NOT NULL,
    job TEXT NOT NULL,
    created REAL NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    claimed INTEGER NOT NULL DEFAULT 0,
    not_before REAL NOT NULL
);
CREATE INDEX deliveries_that_are_due ON deliveries (not_before, host, owner, attempt);
CREATE INDEX deliveries_by_owner ON deliveries (owner);
"""
_BATCH_KEYS = """
ALTER TABLE batches ADD COLUMN idempotency_key TEXT;
ALTER TABLE batches ADD COLUMN fingerprint BLOB;
CREATE UNIQUE INDEX batches_by_idempotency_key ON batches (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
"""
# How the tables came to be what they are, one step for each version. A database of an older one is brought up to date,
# one of a newer one is refused.
_STEPS = (_JOBS, _BATCHES, _SOURCES, _WEBHOOKS, _BATCH_KEYS)
# Kept in the database as `user_version`.
VERSION = len(_STEPS)


def open_database(path: Path) -> sqlite3.Connection:
    """Raises UnusableStore."""
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise UnusableStore(f"the job store '{path}' cannot be opened: {error}") from None
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise UnusableStore(
            f"the job store '{path}' cannot have a write-ahead log (its journal is '{mode}'): choose a folder on a "
            f"local file system"
        )
    connection.execute("PRAGMA synchronous = FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise UnusableStore(
            f"the job store '{path}' has version {version} and this server reads versions up to {VERSION}: use the "
            f"server that made it, or another folder"
        )
    for number, step in enumerate(_STEPS[version:], version + 1):
        connection.executescript(f"BEGIN IMMEDIATE;{step}PRAGMA user_version = {number};COMMIT;")
