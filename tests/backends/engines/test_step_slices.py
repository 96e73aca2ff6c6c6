"""Steps of an engine, taken in slices: the order of all, and who runs in between."""

from __future__ import annotations

from itertools import pairwise

import trio

from backends.engines.step_slices import MOST_WAITING, SLICE_EVENTS, StepSlices
from backends.engines.worker.trioton_engine.engine import Event, Stats

Taken = list[int | str]


def slices(taken: Taken, nursery: trio.Nursery) -> StepSlices:
    return StepSlices(
        lambda event, now: taken.append(event.sequence),
        lambda stats, now: taken.append(f"end {now:.0f} {stats.running}"),
        nursery.start_soon,
    )


def events(count: int, begin: int = 0) -> list[Event]:
    return [Event(begin + number) for number in range(count)]


async def test_a_step_of_few_events_is_taken_at_once() -> None:
    taken: Taken = []
    async with trio.open_nursery() as nursery:
        steps = slices(taken, nursery)
        steps.put(events(SLICE_EVENTS), Stats(running=7), 1.0)
        assert taken == [*range(SLICE_EVENTS), "end 1 7"]
        steps.put([], Stats(), 2.0)
        assert taken[-1] == "end 2 0"
        assert not nursery.child_tasks


async def test_others_run_between_the_slices_of_a_large_step() -> None:
    taken: Taken = []
    async with trio.open_nursery() as nursery:
        steps = slices(taken, nursery)
        steps.put(events(3 * SLICE_EVENTS + 1), Stats(), 1.0)
        steps.put(events(2, begin=1000), Stats(), 2.0)  # behind it, however small
        seen = [len(taken)]
        while nursery.child_tasks:
            await trio.lowlevel.checkpoint()
            seen.append(len(taken))
    assert taken == [*range(3 * SLICE_EVENTS + 1), "end 1 0", 1000, 1001, "end 2 0"]
    # A turn of each of the two tasks, in any order.
    assert max(after - before for before, after in pairwise(seen)) <= 2 * (SLICE_EVENTS + 1)
    assert seen[0] == SLICE_EVENTS


async def test_an_engine_that_is_too_fast_has_its_steps_taken_at_once() -> None:
    taken: Taken = []
    async with trio.open_nursery() as nursery:
        steps = slices(taken, nursery)
        count = MOST_WAITING // 2 + SLICE_EVENTS
        steps.put(events(count), Stats(), 1.0)
        steps.put(events(count, begin=count), Stats(), 2.0)
        assert taken == [*range(count), "end 1 0", *range(count, 2 * count), "end 2 0"]


async def test_what_waits_when_the_worker_ends_is_not_taken() -> None:
    taken: Taken = []
    async with trio.open_nursery() as nursery:
        steps = slices(taken, nursery)
        steps.put(events(2 * SLICE_EVENTS), Stats(), 1.0)
        steps.clear()
    assert taken == list(range(SLICE_EVENTS))


async def test_steps_after_a_large_one_are_taken() -> None:
    taken: Taken = []
    async with trio.open_nursery() as nursery:
        steps = slices(taken, nursery)
        for number in range(3):
            steps.put(events(SLICE_EVENTS + 1), Stats(), float(number))
            while nursery.child_tasks:
                await trio.lowlevel.checkpoint()
    assert [each for each in taken if isinstance(each, str)] == ["end 0 0", "end 1 0", "end 2 0"]
