"""Job stores against a model of them, by random schedules: every state, count and result agrees after each step, and a
crash (the store is ended without a word, and opened anew) loses nothing."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

from actors.jobs.sqlite.schema import SUSPECT
from protocol.errors import InsufficientStorage
from protocol.jobs.job import Counts, ItemError, ended_state
from protocol.jobs.states import JobState
from protocol.jobs.store import Claim, JobFilter, JobStore, Limits, NewItem, NewJob, Outcome
from protocol.jobs.webhook import DeliveryRoom, Webhook
from tests.actors.cache.redis_server import RedisServer, needs_redis_server
from tests.actors.jobs.stores import RedisStores, SqliteStores, Stores

T = TypeVar("T")
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
# All deliveries, which are due again at once.
ALL = DeliveryRoom(total=10_000, per_host=10_000, per_owner=10_000)
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

    def claim(self, room: dict[str, int], now: float, claimed: list[tuple[str, int]], *, in_order: bool) -> None:
        """Take what was claimed: as many as there should be, the oldest first where the store has that order."""
        items = [(item, job, place, id) for id, job in self.jobs.items() for place, item in enumerate(job.items)]
        if any(item.state is R and item.interrupted >= SUSPECT for item, *_ in items):
            assert claimed == []
            return
        waiting = sorted(
            (item.not_before, job.number, place, id)
            for item, job, place, id in items
            if item.state is Q and item.not_before <= now
        )
        suspects = [(id, place) for *_, place, id in waiting if self.jobs[id].items[place].interrupted >= SUSPECT]
        if suspects:
            is_idle = not any(item.state is R for item, *_ in items)
            assert len(claimed) == is_idle
            assert {*claimed} <= {*(suspects[:1] if in_order else suspects)}
        else:
            for model in MODELS:
                own = [(id, place) for *_, place, id in waiting if self.jobs[id].items[place].model == model]
                taken = [each for each in claimed if each in own]
                assert len(taken) == min(room.get(model, 1), len(own))
                assert not in_order or {*taken} == {*own[: len(taken)]}
            assert {*claimed} <= {(id, place) for *_, place, id in waiting}
        assert len(claimed) == len({*claimed})
        for id, place in claimed:
            self.run(id, place)

    def run(self, id: str, place: int) -> None:
        job = self.jobs[id]
        item = job.items[place]
        item.state, item.claim, item.attempt = R, item.claim + 1, item.attempt + 1
        job.state = R if job.state is Q else job.state


class Loop:
    """A Trio loop in a thread, which runs the store while the test goes step by step."""

    def __init__(self) -> None:
        self._token: trio.lowlevel.TrioToken
        self._has_begun = threading.Event()
        self._end: trio.Event
        self._thread = threading.Thread(target=trio.run, args=(self._run,), daemon=True)
        self._thread.start()
        self._has_begun.wait()

    def call(self, call: Callable[..., Awaitable[T]], *arguments: object) -> T:
        return trio.from_thread.run(call, *arguments, trio_token=self._token)

    def close(self) -> None:
        trio.from_thread.run_sync(self._end.set, trio_token=self._token)
        self._thread.join()

    async def _run(self) -> None:
        self._token, self._end = trio.lowlevel.current_trio_token(), trio.Event()
        self._has_begun.set()
        await self._end.wait()


class StoreMachine(RuleBasedStateMachine):
    """Of a kind of stores that a subclass makes."""

    claims = Bundle("claims")
    ids = Bundle("ids")
    # Items that are queued again come in the order in which they were queued first.
    in_order: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.stores = self.make_stores(Path(self._folder.name))
        self.loop = Loop()
        self.model = Model()
        self.now = 1000.0
        self.told: set[str] = set()
        self.store = self.open()

    @staticmethod
    def make_stores(folder: Path) -> Stores:
        raise NotImplementedError

    def open(self) -> JobStore:
        store = self.stores.make(LIMITS)
        self.loop.call(store.open, self.now)
        self.loop.call(self.stores.recover, store)
        return store

    def teardown(self) -> None:
        self.loop.call(self.store.close)
        self.loop.close()
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
        items = [NewItem(model, [b"x" * size]) for model in models]
        webhook = Webhook("https://a/", "https://a") if _has_webhook(number) else None
        new = NewJob(id, owner, items, self.now + lasts, webhook=webhook)
        held = sum(job.size for job in self.model.jobs.values())
        total = size * len(models)
        ended = sorted((job.ended, job.number, id) for id, job in self.model.jobs.items() if job.state.is_ended)
        forgotten = []
        while held + total > LIMITS.byte_size and ended:
            *_, oldest = ended.pop(0)
            held -= self.model.jobs[oldest].size
            forgotten.append(oldest)
        try:
            job, is_made = self.loop.call(self.store.add, new, self.now)
        except InsufficientStorage:
            assert held + total > LIMITS.byte_size
            self._forget(forgotten)
            return id
        assert is_made
        assert held + total <= LIMITS.byte_size
        for each in forgotten:
            del self.model.jobs[each]
        listed = [ModelItem(model, self.now) for model in models]
        self.model.jobs[id] = ModelJob(owner, number, self.now + lasts, listed, size=total)
        assert job.state is Q
        return id

    def _forget(self, may_be: list[str]) -> None:
        """A store may have forgotten some before it sees that this is not enough."""
        for id in may_be:
            if self.loop.call(self.store.find, None, id) is None:
                del self.model.jobs[id]

    @rule(target=claims, room=st.dictionaries(st.sampled_from(MODELS), st.integers(0, 3)))
    def claim(self, room: dict[str, int]) -> object:
        claimed = self.loop.call(self.store.claim, room, 1, self.now)
        taken = [(claim.job_id, claim.index) for claim in claimed]
        self.model.claim(room, self.now, taken, in_order=self.in_order)
        for claim in claimed:
            item = self.model.jobs[claim.job_id].items[claim.index]
            assert (claim.model, claim.claim, claim.attempt) == (item.model, item.claim, item.attempt)
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
            [b"r" * size] if state is S else (),
            error,
            self.now + later,
            is_counted,
        )
        (found,) = self.loop.call(self.store.finish, [outcome], self.now)
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
        found = self.loop.call(self.store.cancel, owner, id, self.now)
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
        removed = self.loop.call(self.store.remove, owner, id)
        job = self.model.jobs.get(id)
        assert removed == (job is not None and job.owner == owner and job.state.is_ended)
        if removed:
            del self.model.jobs[id]

    @rule()
    def expire(self) -> None:
        ended = self.loop.call(self.store.expire, self.now)
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
        self.loop.call(self.stores.kill, self.store)
        self.store = self.open()
        for job in self.model.jobs.values():
            ran = job.counts.running
            for item in job.items:
                if item.state is R:
                    item.interrupted += 1
                    gives_up = item.interrupted >= LIMITS.max_interruptions
                    item.state = C if job.state is JobState.CANCELLING else F if gives_up else Q
            job.end_if_done(self.now)
            if job.state is R and (ran or self.in_order):  # others may still run what has been queued again before
                job.state = Q

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        for id, job in self.model.jobs.items():
            found = self.loop.call(self.store.find, job.owner, id)
            assert found is not None
            assert (found.state, found.counts, found.byte_size) == (job.state, job.counts, job.size)
            assert found.ended == job.ended
            items = self.loop.call(lambda id=id: self.store.items(id, 0, 10, results=True))
            for got, item in zip(items, job.items, strict=True):
                assert (got.state, got.attempt, got.model) == (item.state, item.attempt, item.model)
                assert (got.result or None) == (item.result or None)
        figures = self.loop.call(self.store.figures)
        for state in JobState:
            assert figures.jobs[state] == sum(job.state is state for job in self.model.jobs.values())
        assert figures.byte_size == sum(job.size for job in self.model.jobs.values())
        for owner in ("ann", "bob"):
            listed = [job.id for job in self.loop.call(self.store.jobs, owner, JobFilter(), "", 1000)]
            assert listed == sorted((id for id, job in self.model.jobs.items() if job.owner == owner), reverse=True)

    @invariant()
    def each_end_is_told_once(self) -> None:
        """Where it is to be told, and also of jobs that have been forgotten since."""
        told = [each.job.id for each in self.loop.call(self.store.claim_deliveries, ALL, self.now, self.now)]
        assert len(told) == len({*told})
        assert self.told <= {*told}
        self.told = {*told}
        for id, job in self.model.jobs.items():
            assert (id in self.told) == (job.state.is_ended and _has_webhook(job.number))


def _has_webhook(number: int) -> bool:
    """Every other job does."""
    return number % 2 == 0


SETTINGS = settings(max_examples=15, stateful_step_count=30, deadline=None)


class SqliteMachine(StoreMachine):
    in_order = True

    @staticmethod
    def make_stores(folder: Path) -> Stores:
        return SqliteStores(folder)


def test_the_sqlite_store() -> None:
    run_state_machine_as_test(SqliteMachine, settings=SETTINGS)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@needs_redis_server
def test_the_redis_store(redis_server: RedisServer) -> None:
    class RedisMachine(StoreMachine):
        in_order = False

        @staticmethod
        def make_stores(folder: Path) -> Stores:
            return RedisStores(redis_server.port)

    run_state_machine_as_test(RedisMachine, settings=SETTINGS)
