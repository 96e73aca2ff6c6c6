"""When a worker that owes something is taken for hung, in virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from backends.engines.hang_watch import HangWatch

LIMIT = 10.0


class Debt:
    """What a worker owes."""

    def __init__(self) -> None:
        self.since: float | None = None

    def owed_for(self) -> float:
        return 0.0 if self.since is None else trio.current_time() - self.since


async def hung_after(debt: Debt) -> float:
    began = trio.current_time()
    await HangWatch(LIMIT, debt.owed_for).wait_hung()
    return trio.current_time() - began


async def test_what_is_owed_for_the_limit(autojump_clock: MockClock) -> None:
    debt = Debt()
    debt.since = trio.current_time()
    assert await hung_after(debt) == pytest.approx(LIMIT, abs=0.5)


async def test_while_nothing_is_owed_nothing_hangs(autojump_clock: MockClock) -> None:
    with trio.move_on_after(100 * LIMIT) as scope:
        await hung_after(Debt())
    assert scope.cancelled_caught


async def test_each_step_begins_anew(autojump_clock: MockClock) -> None:
    debt = Debt()

    async def steps() -> None:
        for _ in range(20):
            debt.since = trio.current_time()
            await trio.sleep(0.9 * LIMIT)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(steps)
        assert await hung_after(debt) == pytest.approx(19 * 0.9 * LIMIT + LIMIT, abs=0.5)


async def test_a_server_that_has_stood_still_waits_once_more(autojump_clock: MockClock) -> None:
    """What the engine has sent meanwhile is not read yet."""
    debt = Debt()
    debt.since = trio.current_time()

    async def stand_still() -> None:
        await trio.sleep(LIMIT / 2)
        autojump_clock.jump(5 * LIMIT)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stand_still)
        assert await hung_after(debt) == pytest.approx(LIMIT / 2 + 5 * LIMIT + LIMIT, abs=0.5)
