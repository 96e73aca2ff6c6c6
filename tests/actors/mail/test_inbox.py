from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.mail.inbox import Inbox


async def test_it_gives_messages_in_their_order_to_a_task_that_sleeps(nursery: trio.Nursery) -> None:
    inbox = Inbox[str]()
    found: list[str] = []

    async def hear() -> None:
        while (message := await inbox.receive()) is not None:
            found.append(message)

    nursery.start_soon(hear)
    await wait_all_tasks_blocked()
    inbox.send_nowait("a")
    inbox.send_nowait("b")
    await wait_all_tasks_blocked()
    assert found == ["a", "b"]
    inbox.send_nowait("c")
    inbox.close()
    await wait_all_tasks_blocked()
    assert found == ["a", "b", "c"]


async def test_closed_it_takes_no_more() -> None:
    inbox = Inbox[str]()
    inbox.close()
    with pytest.raises(trio.BrokenResourceError):
        inbox.send_nowait("late")
    assert await inbox.receive() is None


async def test_a_task_that_sleeps_sleeps_on_if_its_message_is_taken_by_another(nursery: trio.Nursery) -> None:
    inbox = Inbox[str]()
    found: list[str | None] = []

    async def hear() -> None:
        found.append(await inbox.receive())

    nursery.start_soon(hear)
    await wait_all_tasks_blocked()
    inbox.send_nowait("a")
    assert inbox.receive_nowait() == "a"
    await wait_all_tasks_blocked()
    assert found == []
    inbox.send_nowait("b")
    await wait_all_tasks_blocked()
    assert found == ["b"]


async def test_a_cancelled_receive_takes_nothing(nursery: trio.Nursery) -> None:
    inbox = Inbox[str]()
    with trio.CancelScope() as scope:
        nursery.start_soon(cancel_soon, scope)
        await inbox.receive()
    assert scope.cancelled_caught
    assert inbox.receive_nowait() is None
    inbox.send_nowait("a")
    assert inbox.receive_nowait() == "a"


async def cancel_soon(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()
