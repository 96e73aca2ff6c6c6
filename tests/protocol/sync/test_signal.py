"""A signal, its one waiter, and one that has gone."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from protocol.sync.signal import Signal


async def test_whoever_waits_goes_on_when_it_is_set() -> None:
    signal = Signal()
    with trio.move_on_after(1000) as waiting:
        async with trio.open_nursery() as inner:
            inner.start_soon(signal.wait)
            await wait_all_tasks_blocked()
            assert inner.child_tasks
            signal.set()
            signal.set()
    assert not waiting.cancelled_caught
    await signal.wait()  # at once


async def test_one_that_has_gone_is_not_woken() -> None:
    signal = Signal()
    async with trio.open_nursery() as inner:
        inner.start_soon(signal.wait)
        await wait_all_tasks_blocked()
        inner.cancel_scope.cancel()
    signal.set()
    assert signal.is_set
