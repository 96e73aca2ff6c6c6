"""One task wakes another."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.sync.wakeup import WaitingTasks, Wakeup


async def test_a_wait_ends_with_the_next_wake() -> None:
    wakeup = Wakeup()
    wakeup.wake()  # nobody waits: forgotten
    woken = []

    async def wait() -> None:
        await wakeup.wait()
        woken.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        wakeup.wake()
    assert woken == [True]


async def test_a_wait_that_is_cancelled_is_over() -> None:
    wakeup = Wakeup()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.wait)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(AssertionError, match="only one task"):
            await wakeup.wait()
        nursery.cancel_scope.cancel()
    wakeup.wake()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.wait)
        await trio.testing.wait_all_tasks_blocked()
        wakeup.wake()


async def test_the_idle_task_that_waited_last_is_woken_first() -> None:
    idle = WaitingTasks()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await idle.wait()
        woken.append(number)

    async with trio.open_nursery() as nursery:
        assert not idle.wake_one()
        for number in range(4):
            nursery.start_soon(wait, number)
            await trio.testing.wait_all_tasks_blocked()
        assert len(idle.waiting) == 4
        assert idle.wake_one()
        await trio.testing.wait_all_tasks_blocked()
        assert woken == [3]
        idle.wake_all()
    assert sorted(woken) == [0, 1, 2, 3]
    assert len(idle.waiting) == 0


async def test_an_idle_task_that_is_cancelled_waits_no_more() -> None:
    idle = WaitingTasks()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(idle.wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(idle.waiting) == 0
    assert not idle.wake_one()
