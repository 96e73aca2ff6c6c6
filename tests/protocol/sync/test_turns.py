"""Turns that are given out: how many go on in one of the loop's, and in which order."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.sync.turns import PacedTurns


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
