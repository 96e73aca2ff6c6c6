"""What has become of items is stored together, and one that cannot be stored holds no other up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.jobs.figures import RunnerFigures
from actors.jobs.followers import Followers
from actors.jobs.outcomes import MOST_TOGETHER, Outcomes
from actors.jobs.pace import GATHER_SECONDS, Pace
from protocol.errors import InsufficientStorage, ServerError
from protocol.failures import CallbackFailures
from protocol.jobs.job import Counts, Job
from protocol.jobs.states import JobState
from protocol.jobs.store import JobStore, Outcome

JOB = Job("job", "", "m", -1, JobState.RUNNING, Counts(running=1), 0.0, 1.0)


@dataclass
class Store:
    """`refused` and `broken` are indices of items that it does not take."""

    calls: list[list[int]] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)

    async def finish(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Job | None]:
        await trio.lowlevel.checkpoint()
        indices = [each.index for each in outcomes]
        self.calls.append(indices)
        if self.refused & set(indices):
            raise InsufficientStorage("full")
        if self.broken & set(indices):
            raise ValueError("a defect")
        return [JOB] * len(outcomes)


@dataclass
class Fixture:
    outcomes: Outcomes
    store: Store
    figures: RunnerFigures
    pace: Pace
    failures: CallbackFailures
    errors: list[ServerError] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)

    def add(self, *indices: int) -> None:
        for index in indices:
            self.outcomes.add(Outcome("job", index, 1, JobState.SUCCEEDED), partial(self.stored.append, index))


@asynccontextmanager
async def running() -> AsyncIterator[Fixture]:
    store, figures, pace, failures, errors = Store(), RunnerFigures(), Pace(), CallbackFailures(), list[ServerError]()
    outcomes = Outcomes(cast(JobStore, store), Followers(), figures, failures, errors.append, pace, trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcomes.run)
        yield Fixture(outcomes, store, figures, pace, failures, errors)
        outcomes.close()


async def test_what_comes_together_is_stored_together(autojump_clock: MockClock) -> None:
    async with running() as it:
        it.add(*range(MOST_TOGETHER + 3))
        await wait_all_tasks_blocked()
        assert [len(call) for call in it.store.calls] == [MOST_TOGETHER, 3]
        assert it.stored == list(range(MOST_TOGETHER + 3))
        assert it.figures.items == {JobState.SUCCEEDED: MOST_TOGETHER + 3}


async def test_beside_live_requests_they_are_gathered(autojump_clock: MockClock) -> None:
    async with running() as it:
        await wait_all_tasks_blocked()
        for index in range(3):
            it.pace.note_live(trio.current_time())
            it.add(index)
            await trio.sleep(GATHER_SECONDS / 4)
        assert it.store.calls == []
        await trio.sleep(GATHER_SECONDS)
        assert it.store.calls == [[0, 1, 2]]


async def test_one_that_is_refused_holds_no_other_up(autojump_clock: MockClock) -> None:
    async with running() as it:
        it.store.refused = {1}
        it.add(0, 1, 2)
        await trio.sleep(3)
        it.add(3)
        await trio.sleep(3)
        assert sorted(it.stored) == [0, 2, 3]
        assert it.errors
        it.store.refused = set()
        await trio.sleep(10)
        assert sorted(it.stored) == [0, 1, 2, 3]


async def test_a_defect_costs_only_its_own(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as it:
        it.store.broken = {1}
        it.add(0, 1, 2)
        await trio.sleep(60)
        assert sorted(it.stored) == [0, 1, 2]  # it is of no use to try it again
        assert it.figures.items == {JobState.SUCCEEDED: 2}
        assert it.failures.counts()["job"] == 2
        assert "could not be ended" in caplog.text


async def test_it_ends_when_all_is_stored(autojump_clock: MockClock) -> None:
    async with running() as it:
        it.pace.note_live(trio.current_time())
        it.add(0)
    assert it.stored == [0]
