"""The selector made of tasks: what is ready is given, and nothing of what is not registered any more."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from protocol.reactor.poller import READABLE
from protocol.reactor.socket_tasks import SocketTasks


@pytest.fixture
async def selector() -> AsyncIterator[SocketTasks]:
    made = SocketTasks()
    yield made
    made.close()
    await trio.testing.wait_all_tasks_blocked()


async def test_what_is_readable_is_given_until_it_is_read(selector: SocketTasks) -> None:
    watched, other = socket.socketpair()
    with watched, other:
        selector.register(watched.fileno(), READABLE)
        other.sendall(b"x")
        for _ in range(3):
            with trio.fail_after(60):
                await selector.wait()
            assert selector.poll(0, 10) == [(watched.fileno(), READABLE)]
            assert selector.poll(0, 10) == []
        watched.recv(1)
        await trio.testing.wait_all_tasks_blocked()
        selector.poll(0, 10)  # a task may have found it readable before it was read
        await trio.testing.wait_all_tasks_blocked()
        assert selector.poll(0, 10) == []
        selector.unregister(watched.fileno())


async def test_a_number_may_be_registered_again_at_once(selector: SocketTasks) -> None:
    """Trio, which runs tasks in any order, lets only one task wait for it; so it is done often."""
    for _ in range(20):
        first, its_other = socket.socketpair()
        number = first.fileno()
        selector.register(number, READABLE)
        first.close()
        second, other = socket.socketpair()
        with second, other, its_other:
            assert second.fileno() == number
            selector.register(number, READABLE)
            other.sendall(b"x")
            with trio.fail_after(60):
                await selector.wait()
            assert selector.poll(0, 10) == [(number, READABLE)]
            selector.unregister(number)
        await trio.testing.wait_all_tasks_blocked()


async def test_what_was_unregistered_before_its_task_ran_is_not_given(selector: SocketTasks) -> None:
    watched, other = socket.socketpair()

    class Unregistering(trio.abc.Instrument):
        """Between Trio's wait, which wakes the task, and the task: once."""

        def after_io_wait(self, timeout: float) -> None:
            selector.unregister(watched.fileno())
            trio.lowlevel.remove_instrument(self)

    with watched, other:
        selector.register(watched.fileno(), READABLE)
        await trio.testing.wait_all_tasks_blocked()
        other.sendall(b"x")
        trio.lowlevel.add_instrument(Unregistering())
        await trio.testing.wait_all_tasks_blocked()
        assert selector.poll(0, 10) == []
