"""One task wakes another."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.http.wakeup import Wakeup


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
