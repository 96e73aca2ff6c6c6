"""Work in slices: others run in between, callers share one run of it, and those who leave cost nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio

from protocol.sync.sliced import FIRST_SECONDS, FIRST_SHARE, FirstSlices, SharedWork, Sliced, run_sliced


def counting(steps: int, done: list[int]) -> Sliced[int]:
    for step in range(steps):
        done.append(step)
        yield
    return steps


async def test_others_run_between_two_slices(nursery: trio.Nursery) -> None:
    done: list[int] = []
    seen: list[int] = []

    async def look() -> None:
        while len(done) < 5:
            seen.append(len(done))
            await trio.lowlevel.checkpoint()

    nursery.start_soon(look)
    assert await run_sliced(counting(5, done), seconds=0) == 5
    assert len(set(seen)) > 1, "it has run beside at least two of the steps"


async def test_of_many_works_one_goes_on_in_a_turn() -> None:
    """However many clients ask for something long, whoever has a place in the loop waits for one slice."""
    order: list[int] = []
    turns: list[int] = []

    def work(name: int) -> Sliced[None]:
        for _ in range(4):
            order.append(name)
            yield

    async def count() -> None:
        while True:
            before = len(order)
            await trio.lowlevel.checkpoint()
            turns.append(len(order) - before)

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as works:
            for name in range(10):
                works.start_soon(partial(run_sliced, work(name), seconds=0))
            nursery.start_soon(count)
        nursery.cancel_scope.cancel()
    assert max(turns[1:]) <= 2, "one of its turn, and one of the turn before"
    assert all(len(set(order[first : first + 10])) == 10 for first in range(0, 40, 10)), "each has its turn"


def test_first_slices_have_a_part_of_the_time() -> None:
    first = FirstSlices()
    assert first.may_begin(100.0)
    first.note(FIRST_SECONDS / 2)
    assert first.may_begin(100.0)
    first.note(FIRST_SECONDS)
    assert not first.may_begin(100.0)
    assert not first.may_begin(100.0 + FIRST_SECONDS / 2 / FIRST_SHARE)
    assert first.may_begin(100.0 + FIRST_SECONDS / FIRST_SHARE)
    first.note(2 * FIRST_SECONDS)
    assert not first.may_begin(100.0 + 2 * FIRST_SECONDS / FIRST_SHARE)
    assert first.may_begin(1e6), "however long nothing was done, no more than that is saved"
    first.note(1.5 * FIRST_SECONDS)
    assert not first.may_begin(1e6)


async def test_of_many_works_that_begin_few_do_so_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a single slice: they were all done in one turn of the loop, which took as long as all of them."""
    now = 0.0
    begun: list[int] = []
    turns: list[int] = []

    def work() -> Sliced[None]:
        nonlocal now
        begun.append(1)
        now += FIRST_SECONDS / 2
        return
        yield

    async def count() -> None:
        while True:
            before = len(begun)
            await trio.lowlevel.checkpoint()
            turns.append(len(begun) - before)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as works:
            for _ in range(40):
                works.start_soon(run_sliced, work())
            nursery.start_soon(count)
        nursery.cancel_scope.cancel()
    assert len(begun) == 40
    assert max(turns) <= 6, "four first slices, and whose turn it is: in this turn of the loop, and in the next"
    assert max(turns[2:]) <= 2


async def test_what_takes_less_than_a_slice_is_done_at_once() -> None:
    """No other task runs."""
    done: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await run_sliced(counting(5, done), seconds=60) == 5


@dataclass
class Begun:
    """Work that is begun as often as `count` says; each of its steps is a slice."""

    steps: int = 3
    error: Exception | None = None
    count: int = 0
    done: list[int] = field(default_factory=list)

    def __call__(self) -> Sliced[int]:
        self.count += 1
        for step in range(self.steps):
            self.done.append(step)
            yield from slow()
        if self.error is not None:
            raise self.error
        return self.count


def slow() -> Sliced[None]:
    """As long as a slice, by the clock that slices go by."""
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        pass
    yield


async def test_callers_share_one_run() -> None:
    begun = Begun()
    work = SharedWork(begun)
    results: list[int] = []

    async def ask() -> None:
        results.append(await work.result())

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert (results, begun.count) == ([1] * 5, 1)
    assert await work.result() == 2, "the next one gets what is there then"


async def test_who_leaves_hands_the_work_on() -> None:
    begun = Begun()
    work = SharedWork(begun)
    results: list[int] = []

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            results.append(await work.result())

    first, second = trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, first)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(ask, second)
        await trio.lowlevel.checkpoint()
        first.cancel()
    assert (results, begun.count, begun.done) == ([1], 1, [0, 1, 2])


async def test_with_the_last_caller_the_work_is_dropped() -> None:
    begun = Begun(steps=1000)
    work = SharedWork(begun)
    with trio.move_on_after(0.005):
        await work.result()
    assert 0 < len(begun.done) < 1000
    begun.steps = 1
    assert await work.result() == 2


async def test_a_failure_is_raised_to_all() -> None:
    begun = Begun(error=ValueError("no"))
    work = SharedWork(begun)
    raised: list[str] = []

    async def ask() -> None:
        with pytest.raises(ValueError, match="no") as caught:
            await work.result()
        raised.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert (raised, begun.count) == (["no"] * 3, 1)
    begun.error = None
    assert await work.result() == 2
