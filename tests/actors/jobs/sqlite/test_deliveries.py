"""Deliveries of webhooks in the job store: made with the state that they tell, kept until they are settled."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.jobs.sqlite import changes, deliveries
from actors.jobs.sqlite.changes import NOTHING, Kept
from actors.jobs.sqlite.schema import open_database
from protocol.errors import Overloaded
from protocol.jobs.job import Job, new_job_id
from protocol.jobs.states import JobState
from protocol.jobs.store import Limits, NewItem, NewJob, Outcome
from protocol.jobs.webhook import EVENT_STATES, Delivery, DeliveryRoom, Webhook

LIMITS = Limits(keep_seconds=50.0)
METADATA = {"a": "ä\ud800"}  # JSON may have half a character
ROOM = DeliveryRoom(total=64, per_host=4, per_owner=8)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = open_database(tmp_path / "jobs.sqlite3")
    yield made
    made.close()


def add(
    db: sqlite3.Connection, *, host: str = "https://a", owner: str = "ann", states: tuple[JobState, ...] = EVENT_STATES
) -> Job:
    webhook = Webhook(f"{host}/hook", host, frozenset(states))
    item = NewItem("m", [b"r"])
    new = NewJob(new_job_id(1.0), owner, [item], 100.0, model="m", metadata=METADATA, webhook=webhook)
    job, _, _ = changes.add(db, new, [Kept(1, b"r", None)], LIMITS, 1.0)
    return job


def run(db: sqlite3.Connection, state: JobState = JobState.SUCCEEDED, now: float = 2.0) -> Job:
    (claim,) = changes.claim(db, {}, 1, now)
    (ended,), _ = changes.finish(db, [Outcome(claim.job_id, claim.index, claim.claim, state)], [NOTHING], now)
    assert ended is not None
    return ended


def claim(db: sqlite3.Connection, now: float, room: DeliveryRoom = ROOM) -> list[Delivery]:
    return deliveries.claim(db, room, now, now + 60)


def test_of_others_none_is_made(db: sqlite3.Connection) -> None:
    add(db, states=(JobState.FAILED,))
    run(db)
    assert claim(db, 2.0) == []
    add(db, states=(JobState.FAILED,))
    run(db, JobState.FAILED)
    assert [each.state for each in claim(db, 2.0)] == [JobState.FAILED]


def test_jobs_that_end_without_having_run(db: sqlite3.Connection) -> None:
    cancelled, late = add(db), add(db)
    changes.cancel(db, "ann", cancelled.id, 2.0)
    changes.expire(db, LIMITS, 200.0)
    assert {each.job.id: each.state for each in claim(db, 200.0)} == {
        cancelled.id: JobState.CANCELLED,
        late.id: JobState.EXPIRED,
    }


def test_what_was_under_way_when_the_server_ended_is_due_at_once(db: sqlite3.Connection) -> None:
    for _ in range(2):
        add(db, states=(JobState.SUCCEEDED,))
        run(db)
    first, second = claim(db, 3.0)
    deliveries.settle(db, second, 500.0)
    changes.recover(db, LIMITS, 4.0)
    assert [(each.id, each.attempt) for each in claim(db, 4.0)] == [(first.id, 2)]
    assert [(each.id, each.attempt) for each in claim(db, 500.0)] == [(first.id, 3), (second.id, 2)]


def test_a_job_is_refused_where_too_much_is_not_taken(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "MOST_OF_OWNER", 2)
    for _ in range(2):
        add(db, states=(JobState.SUCCEEDED,))
        run(db)
    with pytest.raises(Overloaded, match="2 webhooks of jobs of 'ann' have not been taken"):
        add(db)
    add(db, owner="bob")
