"""Turns that are given out: how many go on in one of the loop's, and in which order."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
import trio.testing

from protocol.sync.turns import PacedBursts, PacedTurns, PacedWakeups
from protocol.sync.wakeup import Wakeup
from tests.protocol.loop_turns import Steps


@pytest.mark.parametrize("each", [1, 3])
async def test_so_many_go_on_in_a_turn_of_the_loop(each: int) -> None:
    turns = PacedTurns("test", each)
    order: list[int] = []
    loop_turn = 0
    went_on: list[int] = []

    async def count() -> None:
        nonlocal loop_turn
        while True:
            loop_turn += 1
            await trio.lowlevel.checkpoint()

    async def work(number: int) -> None:
        await turns.wait()
        order.append(number)
        went_on.append(loop_turn)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        async with trio.open_nursery() as working:
            for number in range(30):
                working.start_soon(work, number)
        nursery.cancel_scope.cancel()
    # The counter has its place in a turn by chance, so two of them may have one number.
    assert max(went_on.count(turn) for turn in went_on) <= 2 * each
    assert len(set(went_on)) >= 30 // each // 2
    assert sorted(order) == [*range(30)]


async def test_a_burst_goes_on_at_once_and_what_is_beyond_it_in_turns() -> None:
    bursts = PacedBursts("test", burst=40, seconds=1e9, each=3)
    went_on: Counter[int] = Counter()
    loop_turn = 0

    async def count() -> None:
        nonlocal loop_turn
        while True:
            loop_turn += 1
            await trio.lowlevel.checkpoint()

    async def work() -> None:
        for _ in range(10):
            await bursts.wait()
            went_on[loop_turn] += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        async with trio.open_nursery() as working:
            for _ in range(10):
                working.start_soon(work)
        nursery.cancel_scope.cancel()
    first, *others = (went_on[turn] for turn in sorted(went_on))
    # The counter has its place in a turn by chance, so two of them may have one number.
    assert first + others[0] >= 40
    assert max(others[1:]) <= 6
    assert sum(went_on.values()) == 100


async def test_a_place_that_nobody_waits_for_is_had_in_the_next_turn() -> None:
    turns = PacedTurns("test")
    for _ in range(3):
        async with turns.place():
            pass


async def test_one_that_is_cancelled_takes_no_turn() -> None:
    turns = PacedTurns("test")
    async with trio.open_nursery() as nursery, turns.place():
        nursery.start_soon(turns.wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with trio.fail_after(5):
        await turns.wait()


async def test_so_many_are_woken_for_a_turn_of_the_loop() -> None:
    """A callback wakes thirty at once: that costs none of them a turn in which it only waits for its own."""
    paced, order = PacedWakeups("test", 3), list[int]()
    sleeping = [Wakeup() for _ in range(30)]

    async def sleep(number: int) -> None:
        await sleeping[number].wait()
        order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(sleep, number)
        await trio.testing.wait_all_tasks_blocked()
        with Steps("sleep") as steps:
            for each in sleeping:
                paced.wake(each)
            await trio.testing.wait_all_tasks_blocked()
    assert max(steps.of_turns) == 3
    assert sum(steps.of_turns) == 30
    assert [number // 3 for number in order] == [number // 3 for number in range(30)]


async def test_who_sleeps_no_more_takes_no_place_in_a_turn() -> None:
    paced, woken = PacedWakeups("test", 2), list[int]()

    async def wait(number: int) -> None:
        await paced.wait()
        woken.append(number)

    async with trio.open_nursery() as nursery:
        with Steps("wait") as steps:
            async with trio.open_nursery() as leaving:
                for number in range(10):
                    (nursery if number >= 8 else leaving).start_soon(wait, number)
                await trio.lowlevel.checkpoint()
                leaving.cancel_scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
    assert {8, 9} <= set(woken)
    assert len(steps.of_turns) <= 8


async def test_wakeups_are_given_out_again_after_a_pause() -> None:
    paced = PacedWakeups("test", 1)
    for _ in range(3):
        with trio.fail_after(5):
            await paced.wait()
        await trio.testing.wait_all_tasks_blocked()
