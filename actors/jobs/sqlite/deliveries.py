"""Deliveries of webhooks in the job store: each a function on its connection, within a transaction of the caller.

A delivery that is claimed is hidden until its claim is over, not taken out: what is under way when the server ends is
made again. Blocks.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence

import msgspec

from protocol.errors import Overloaded
from protocol.jobs.job import Job
from protocol.jobs.states import JobState
from protocol.jobs.webhook import Delivery, DeliveryRoom, Webhook, new_delivery_id

# Of one owner: with more that nobody takes, no more webhooks are asked for.
MOST_OF_OWNER = 10_000

_read_webhook = msgspec.json.Decoder(Webhook).decode


def encode_webhook(webhook: Webhook | None) -> bytes | None:
    """As the job's row has it."""
    return None if webhook is None else msgspec.json.encode(webhook)


def is_told(webhook: bytes, state: JobState) -> bool:
    return state in _read_webhook(webhook).states


def keep(db: sqlite3.Connection, webhook: bytes, job: Job, now: float) -> None:
    """A job has come to a state that its webhook tells."""
    keep_for(db, _read_webhook(webhook), job, now)


def keep_for(db: sqlite3.Connection, to: Webhook, job: Job, now: float) -> None:
    db.execute(
        "INSERT INTO deliveries (id, owner, url, host, state, job, created, not_before) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (new_delivery_id(), job.owner, to.url, to.host, job.state, json.dumps(msgspec.to_builtins(job)), now, now),
    )


def check_room(db: sqlite3.Connection, owner: str) -> None:
    """Raises Overloaded: too many deliveries of this owner have not been taken."""
    (held,) = db.execute(
        "SELECT count(*) FROM (SELECT 1 FROM deliveries WHERE owner = ? LIMIT ?)", (owner, MOST_OF_OWNER)
    ).fetchone()
    if held == MOST_OF_OWNER:
        raise Overloaded(
            f"{MOST_OF_OWNER} webhooks of jobs of '{owner}' have not been taken by their receivers yet: make jobs "
            f"without one, or see to the receivers"
        )


def claim(db: sqlite3.Connection, room: DeliveryRoom, now: float, until: float) -> list[Delivery]:
    """What has been tried least comes first, so that a receiver which is away is before nobody."""
    numbers = _chosen(db, room, now)
    if not numbers:
        return []
    rows = db.execute(
        f"UPDATE deliveries SET attempt = attempt + 1, claimed = 1, not_before = ? WHERE number IN ({_marks(numbers)}) "
        "RETURNING id, owner, url, host, state, job, created, attempt",
        (until, *numbers),
    ).fetchall()
    return [
        Delivery(id, owner, url, host, JobState(state), msgspec.convert(json.loads(job), Job), created, attempt)
        for id, owner, url, host, state, job, created, attempt in rows
    ]


def _chosen(db: sqlite3.Connection, room: DeliveryRoom, now: float) -> list[int]:
    """Hosts and owners that have no room are not read at all, however much waits for them."""
    hosts, owners = Counter(room.hosts), Counter(room.owners)
    full_hosts = [host for host, count in hosts.items() if count >= room.per_host]
    full_owners = [owner for owner, count in owners.items() if count >= room.per_owner]
    left = room.total - sum(hosts.values())
    cursor = db.execute(
        f"SELECT number, host, owner FROM deliveries WHERE not_before <= ? AND host NOT IN ({_marks(full_hosts)}) "
        f"AND owner NOT IN ({_marks(full_owners)}) ORDER BY attempt, not_before",
        (now, *full_hosts, *full_owners),
    )
    chosen: list[int] = []
    while len(chosen) < left and (row := cursor.fetchone()) is not None:
        number, host, owner = row
        if hosts[host] < room.per_host and owners[owner] < room.per_owner:
            hosts[host] += 1
            owners[owner] += 1
            chosen.append(number)
    cursor.close()
    return chosen


def settle(db: sqlite3.Connection, delivery: Delivery, again: float | None) -> None:
    if again is None:
        db.execute("DELETE FROM deliveries WHERE id = ?", (delivery.id,))
    else:
        db.execute("UPDATE deliveries SET claimed = 0, not_before = ? WHERE id = ?", (again, delivery.id))


def recover(db: sqlite3.Connection, now: float) -> None:
    """None is under way when a server starts."""
    db.execute("UPDATE deliveries SET claimed = 0, not_before = ? WHERE claimed", (now,))


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
