"""Tasks that wait by the poller until a socket is readable."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
import trio
import trio.testing

from protocol.reactor import drivers, readable
from protocol.reactor.drivers import the_poller
from protocol.reactor.readable import Readable
from tests.protocol.loop_turns import Steps

MANY = 200


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    watched, other = socket.socketpair()
    with watched, other:
        watched.setblocking(False)
        yield watched, other


@pytest.fixture(params=["by the poller", "by Trio"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "by Trio":
        monkeypatch.setattr(readable, "has_epoll", lambda: False)
    elif not drivers.has_epoll():
        pytest.skip("this system has no epoll")


async def test_it_returns_when_there_is_something_to_read(pair: tuple[socket.socket, socket.socket]) -> None:
    watched, other = pair
    made, heard = Readable(watched), list[bytes]()

    async def read() -> None:
        for _ in range(3):
            await made.wait()
            heard.append(watched.recv(10))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for data in (b"a", b"b"):
                await trio.testing.wait_all_tasks_blocked()
                other.sendall(data)
            await trio.testing.wait_all_tasks_blocked()
            other.close()
    assert heard == [b"a", b"b", b""]


async def test_what_is_there_already_is_readable(pair: tuple[socket.socket, socket.socket]) -> None:
    watched, other = pair
    other.sendall(b"a")
    made = Readable(watched)
    with trio.fail_after(30):
        for _ in range(2):  # until it is read
            await made.wait()


async def test_who_is_cancelled_leaves_no_trace(pair: tuple[socket.socket, socket.socket]) -> None:
    watched, other = pair
    made = Readable(watched)
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert not the_poller().watched
    other.sendall(b"a")
    with trio.fail_after(30):
        await made.wait()


async def test_a_closed_socket_is_not_waited_for(pair: tuple[socket.socket, socket.socket]) -> None:
    watched, _ = pair
    made = Readable(watched)
    watched.close()
    with pytest.raises((OSError, trio.ClosedResourceError)):
        await made.wait()


async def test_who_waits_goes_on_when_the_socket_is_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    watched, _ = pair
    made, went_on = Readable(watched), trio.Event()

    async def wait() -> None:
        with suppress(trio.ClosedResourceError):
            await made.wait()
        went_on.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        made.end()
        trio.lowlevel.notify_closing(watched)
        watched.close()
        with trio.fail_after(30):
            await went_on.wait()
    assert not the_poller().watched


async def test_of_many_that_are_readable_at_once_some_are_woken_in_a_turn(request: pytest.FixtureRequest) -> None:
    if "Trio" in request.node.name:
        pytest.skip("Trio wakes all")

    async def read_twice(watched: socket.socket) -> None:
        made = Readable(watched)
        for _ in range(2):
            await made.wait()
            watched.recv(1)

    with ExitStack() as stack:
        pairs = [[stack.enter_context(each) for each in socket.socketpair()] for _ in range(MANY)]
        async with trio.open_nursery() as nursery:
            for watched, _ in pairs:
                nursery.start_soon(read_twice, watched)
            for most in (8, 32):  # unheard before, and known
                await trio.testing.wait_all_tasks_blocked()
                with Steps("read_twice") as steps:
                    for _, other in pairs:
                        other.sendall(b"x")
                    await trio.testing.wait_all_tasks_blocked()
                assert sum(steps.of_turns) == MANY
                assert max(steps.of_turns) <= most
