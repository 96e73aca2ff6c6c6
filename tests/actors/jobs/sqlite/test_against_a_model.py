"""The job store's transactions against a model of them, by random schedules: every state, count and result agrees after
each step, and a crash (the database is opened anew and recovers) loses nothing."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from actors.jobs.sqlite import changes, queries
from actors.jobs.sqlite.changes import NOTHING, Kept
from actors.jobs.sqlite.rows import find_job
from actors.jobs.sqlite.schema import SUSPECT, open_database
from protocol.errors import InsufficientStorage
from protocol.jobs.job import Counts, ItemError, ended_state
from protocol.jobs.states import JobState
from protocol.jobs.store import Claim, JobFilter, Limits, NewItem, NewJob, Outcome
from protocol.jobs.webhook import Webhook

LIMITS = Limits(byte_size=200, keep_seconds=50.0, max_interruptions=4)
Q, R, S, F, C, E = (
    JobState.QUEUED,
    JobState.RUNNING,
    JobState.SUCCEEDED,
    JobState.FAILED,
    JobState.CANCELLED,
    JobState.EXPIRED,
)
OWNERS = st.sampled_from(["ann", "bob"])
MODELS = ("m", "n")


@dataclass
class ModelItem:
    model: str
    not_before: float
    state: JobState = Q
    claim: int = 0
    attempt: int = 0
    interrupted: int = 0
    result: bytes | None = None


@dataclass
class ModelJob:
    owner: str
    number: int
    deadline: float
    items: list[ModelItem]
    state: JobState = Q
    ended: float = 0.0
    size: int = 0

    @property
    def counts(self) -> Counts:
        return Counts(*(sum(item.state is state for item in self.items) for state in (Q, R, S, F, C, E)))

    def end_if_done(self, now: float) -> None:
        if not self.counts.left and not self.state.is_ended:
            self.state = ended_state(self.state, self.counts)
            self.ended = now

    def move(self, old: JobState, new: JobState) -> None:
        for item in self.items:
            if item.state is old:
                item.state = new


@dataclass
class Model:
    """Plain and obvious."""

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    made: int = 0

    def claim(self, room: dict[str, int], now: float) -> set[tuple[str, int]]:
        claimed = set()
        items = [(item, job, place, id) for id, job in self.jobs.items() for place, item in enumerate(job.items)]
        suspects = [
            (item.not_before, job.number, place, id)
            for item, job, place, id in items
            if item.state is Q and item.interrupted >= SUSPECT and item.not_before <= now
        ]
        if suspects:
            if any(item.state is R for item, *_ in items):
                return set()
            _, _, place, id = min(suspects)
            self.run(id, place)
            return {(id, place)}
        for model in MODELS:
            waiting = sorted(
                (item.not_before, job.number, place, id)
                for id, job in self.jobs.items()
                for place, item in enumerate(job.items)
                if item.model == model and item.state is Q and item.not_before <= now
            )
            for _, _, place, id in waiting[: room.get(model, 1)]:
                self.run(id, place)
                claimed.add((id, place))
        return claimed

    def run(self, id: str, place: int) -> None:
        job = self.jobs[id]
        item = job.items[place]
        item.state, item.claim, item.attempt = R, item.claim + 1, item.attempt + 1
        job.state = R if job.state is Q else job.state


class StoreMachine(RuleBasedStateMachine):
    claims = Bundle("claims")
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "jobs.sqlite3"
        self.db = self.open()
        self.model = Model()
        self.now = 1000.0
        self.told: set[str] = set()

    def open(self) -> sqlite3.Connection:
        db = open_database(self._path)
        db.execute("PRAGMA synchronous = OFF")  # the machine does not crash in this test
        return db

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def teardown(self) -> None:
        self.db.close()
        self._folder.cleanup()

    @rule(
        target=ids,
        owner=OWNERS,
        models=st.lists(st.sampled_from(MODELS), min_size=1, max_size=4),
        lasts=st.sampled_from([5.0, 1000.0]),
        size=st.integers(0, 20),
    )
    def add(self, owner: str, models: list[str], lasts: float, size: int) -> str:
        self.model.made += 1
        number = self.model.made
        id = f"job_{number:06}"
        items = [NewItem(model, [b""]) for model in models]
        webhook = Webhook("https://a/", "https://a") if _has_webhook(number) else None
        new = NewJob(id, owner, items, self.now + lasts, webhook=webhook)
        held = sum(job.size for job in self.model.jobs.values())
        total = size * len(models)
        ended = sorted(((job.ended, self._number(id)), id) for id, job in self.model.jobs.items() if job.state.is_ended)
        forgotten = []
        while held + total > LIMITS.byte_size and ended:
            _, oldest = ended.pop(0)
            held -= self.model.jobs[oldest].size
            forgotten.append(oldest)
        kept = [Kept(size, b"x" * size, None)] * len(models)
        try:
            with self.transaction():
                job, is_made, _ = changes.add(self.db, new, kept, LIMITS, self.now)
        except InsufficientStorage:
            assert held + total > LIMITS.byte_size
            return id
        assert is_made
        assert held + total <= LIMITS.byte_size
        for each in forgotten:
            del self.model.jobs[each]
        listed = [ModelItem(model, self.now) for model in models]
        self.model.jobs[id] = ModelJob(owner, number, self.now + lasts, listed, size=total)
        assert job.state is Q
        return id

    def _number(self, id: str) -> int:
        (number,) = self.db.execute("SELECT number FROM jobs WHERE id = ?", (id,)).fetchone()
        return int(number)

    @rule(target=claims, room=st.dictionaries(st.sampled_from(MODELS), st.integers(0, 3)))
    def claim(self, room: dict[str, int]) -> object:
        with self.transaction():
            claimed = changes.claim(self.db, room, 1, self.now)
        assert {(claim.job_id, claim.index) for claim in claimed} == self.model.claim(room, self.now)
        return multiple(*claimed)

    @rule(
        claim=claims,
        state=st.sampled_from([Q, S, F, C, E]),
        later=st.sampled_from([0.0, 3.0]),
        size=st.integers(0, 5),
        is_counted=st.booleans(),
    )
    def finish(self, claim: Claim, state: JobState, later: float, size: int, is_counted: bool) -> None:
        error = ItemError("INTERNAL", "no") if state is F else None
        outcome = Outcome(
            claim.job_id,
            claim.index,
            claim.claim,
            state,
            error=error,
            not_before=self.now + later,
            is_counted=is_counted,
        )
        result = Kept(size, b"r" * size, None) if state is S else NOTHING
        with self.transaction():
            found, _ = changes.finish(self.db, outcome, result, self.now)
        job = self.model.jobs.get(claim.job_id)
        item = None if job is None else job.items[claim.index]
        if job is None or item is None or item.state is not R or item.claim != claim.claim:
            assert found is None
            return
        item.state = C if state is Q and job.state is JobState.CANCELLING else state
        item.not_before = self.now + later
        item.attempt -= not is_counted
        if state is S:
            item.result = b"r" * size
            job.size += size
        job.end_if_done(self.now)
        assert found is not None
        assert (found.state, found.counts) == (job.state, job.counts)

    @rule(id=ids, owner=OWNERS)
    def cancel(self, id: str, owner: str) -> None:
        with self.transaction():
            found = changes.cancel(self.db, owner, id, self.now)
        job = self.model.jobs.get(id)
        if job is None or job.owner != owner:
            assert found is None
            return
        if not job.state.is_ended and job.state is not JobState.CANCELLING:
            job.move(Q, C)
            job.state = JobState.CANCELLING if job.state is R else job.state
            job.end_if_done(self.now)
        assert found is not None
        assert found.state is job.state

    @rule(id=ids, owner=OWNERS)
    def remove(self, id: str, owner: str) -> None:
        with self.transaction():
            removed, _ = changes.remove(self.db, owner, id)
        job = self.model.jobs.get(id)
        assert removed == (job is not None and job.owner == owner and job.state.is_ended)
        if removed:
            del self.model.jobs[id]

    @rule()
    def expire(self) -> None:
        with self.transaction():
            ended, _ = changes.expire(self.db, LIMITS, self.now)
        expected: set[str] = set()
        for id, job in list(self.model.jobs.items()):
            if not job.state.is_ended and job.deadline <= self.now and job.counts.queued:
                job.move(Q, E)
                job.end_if_done(self.now)
                expected |= {id} if job.state.is_ended else set()
            if job.state.is_ended and job.ended <= self.now - LIMITS.keep_seconds:
                del self.model.jobs[id]
        assert set(ended) == expected

    @rule(seconds=st.sampled_from([1.0, 4.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def crash(self) -> None:
        self.db.close()
        self.db = self.open()
        with self.transaction():
            changes.recover(self.db, LIMITS, self.now)
        for job in self.model.jobs.values():
            for item in job.items:
                if item.state is R:
                    item.interrupted += 1
                    gives_up = item.interrupted >= LIMITS.max_interruptions
                    item.state = C if job.state is JobState.CANCELLING else F if gives_up else Q
            job.end_if_done(self.now)
            job.state = Q if job.state is R else job.state

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        for id, job in self.model.jobs.items():
            row = find_job(self.db, job.owner, id)
            assert row is not None
            assert (row.job.state, row.job.counts, row.job.byte_size) == (job.state, job.counts, job.size)
            assert row.job.ended == job.ended
            for got, item in zip(queries.items(self.db, id, 0, 10, True), job.items, strict=True):
                assert (got.item.state, got.item.attempt) == (item.state, item.attempt)
                assert got.item.result == item.result
        figures = queries.figures(self.db)
        for state in JobState:
            assert figures.jobs[state] == sum(job.state is state for job in self.model.jobs.values())
        assert figures.byte_size == sum(job.size for job in self.model.jobs.values())
        for owner in ("ann", "bob"):
            listed = [job.id for job in queries.jobs(self.db, owner, JobFilter(), "", 1000)]
            assert listed == sorted((id for id, job in self.model.jobs.items() if job.owner == owner), reverse=True)

    @invariant()
    def each_end_is_told_once(self) -> None:
        """Where it is to be told, and also of jobs that have been forgotten since."""
        told = [json.loads(job)["id"] for (job,) in self.db.execute("SELECT job FROM deliveries")]
        assert len(told) == len({*told})
        assert self.told <= {*told}
        self.told = {*told}
        for id, job in self.model.jobs.items():
            assert (id in self.told) == (job.state.is_ended and _has_webhook(job.number))


def _has_webhook(number: int) -> bool:
    """Every other job does."""
    return number % 2 == 0


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
