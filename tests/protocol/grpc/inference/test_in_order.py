"""Whatever order requests are done in: their answers leave in the right one."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from protocol.grpc.inference.in_order import AnswerOrder


@pytest.mark.slow
@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_answers_leave_in_order(completed: list[int], slow: set[int]) -> None:
    """Some take a while to be sent, and others become ready meanwhile."""
    sent: list[int] = []

    async def send(number: int) -> None:
        if number in slow:
            await trio.sleep(1)
        sent.append(number)

    async def run() -> None:
        order = AnswerOrder(send)
        for number in range(12):
            order.expect(number)

        async def complete(number: int) -> None:
            await trio.sleep(random.choice((0.0, 0.5, 2.0)))
            await order.complete(number)

        async with trio.open_nursery() as nursery:
            for number in completed:
                nursery.start_soon(complete, number)
        assert list(order) == []

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sent == list(range(12))


async def test_what_could_not_be_sent_is_still_expected() -> None:
    async def send(number: int) -> None:
        if number == 1:
            raise trio.BrokenResourceError

    order = AnswerOrder(send)
    for number in range(3):
        order.expect(number)
    await order.complete(2)
    await order.complete(0)
    with pytest.raises(trio.BrokenResourceError):
        await order.complete(1)
    assert list(order) == [1, 2]
