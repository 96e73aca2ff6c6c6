"""The order in which the iterations of streams send."""

from __future__ import annotations

import random

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.ensemble.send_order import SendOrder


async def test_the_first_need_not_wait() -> None:
    with trio.fail_after(1):
        await SendOrder().wait_turn()


async def test_one_that_is_done_early_lets_nobody_pass(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    first = SendOrder()
    second = SendOrder(first)
    third = SendOrder(second)
    came: list[str] = []

    async def wait() -> None:
        await third.wait_turn()
        came.append("third")

    nursery.start_soon(wait)
    second.done()
    await wait_all_tasks_blocked()
    assert not came
    first.done()
    await wait_all_tasks_blocked()
    assert came == ["third"]


async def test_a_stream_is_finished_when_all_of_it_is(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    first = SendOrder()
    last = SendOrder(first)
    last.done()
    with trio.move_on_after(1) as waiting:
        await last.finished()
    assert waiting.cancelled_caught
    first.done()
    with trio.fail_after(1):
        await last.finished()


async def test_streams_inside_each_other_send_in_order(autojump_clock: MockClock) -> None:
    for seed in range(30):
        random_ = random.Random(seed)
        sent: list[tuple[int, int]] = []

        async def send(
            order: SendOrder, name: tuple[int, int], delay: float, sent: list[tuple[int, int]] = sent
        ) -> None:
            await trio.sleep(delay)
            await order.wait_turn()
            sent.append(name)
            order.done()

        async def stream(
            outer: int, around: SendOrder, nursery: trio.Nursery, random_: random.Random = random_
        ) -> None:
            last: SendOrder | None = None
            for inner in range(random_.randrange(4)):
                await trio.sleep(random_.random())
                last = SendOrder(last, around)
                nursery.start_soon(send, last, (outer, inner), random_.random() * 10)
            if last is not None:
                await last.finished()
            around.done()

        async with trio.open_nursery() as nursery:
            around: SendOrder | None = None
            for outer in range(5):
                around = SendOrder(around)
                nursery.start_soon(stream, outer, around, nursery)
        assert sent == sorted(sent)


async def test_a_long_stream_keeps_no_chain_of_turns() -> None:
    order = SendOrder()
    for _ in range(1000):
        order.done()
        order = SendOrder(order)
        await order.wait_turn()
        assert order.before is None
