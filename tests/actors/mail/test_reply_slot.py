"""A place for one answer."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from actors.mail.reply_slot import ReplySlot
from protocol.errors import Unavailable
from protocol.messages import InferenceResponse

ANSWER = InferenceResponse("m", 1, [])


async def test_an_answer_before_and_after_its_caller_waits() -> None:
    early, late = ReplySlot(), ReplySlot()
    early.send_nowait(ANSWER)
    assert await early.receive() is ANSWER
    async with trio.open_nursery() as nursery:
        found = []

        async def receive() -> None:
            found.append(await late.receive())

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        error = Unavailable("later")
        late.send_nowait(error)
    assert found == [error]


async def test_there_is_room_for_one() -> None:
    slot = ReplySlot()
    slot.send_nowait(ANSWER)
    with pytest.raises(trio.WouldBlock):
        slot.send_nowait(ANSWER)


async def test_an_answer_to_a_caller_that_was_cancelled_is_kept() -> None:
    slot = ReplySlot()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slot.receive)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    slot.send_nowait(ANSWER)
    assert await slot.receive() is ANSWER
