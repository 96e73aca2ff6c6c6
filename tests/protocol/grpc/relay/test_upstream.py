"""Connections to the core's gRPC edge: one for each client, closed when it is not used, and lost with its calls."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from protocol.grpc.relay.upstream import UpstreamLost, Upstreams

HEADERS = [(b":method", b"POST"), (b":path", b"/a/b"), (b":scheme", b"http"), (b":authority", b"x")]


class Core:
    """Opens connections, and has the other ends of them."""

    def __init__(self) -> None:
        self.ends: list[trio.SocketStream] = []
        self.clients: list[str] = []

    async def open(self, client: str) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        if client == "refused":
            raise ConnectionRefusedError
        own, its = trio.socket.socketpair()
        self.clients.append(client)
        self.ends.append(trio.SocketStream(its))
        return trio.SocketStream(own)

    async def close(self) -> None:
        for end in self.ends:
            await trio.aclose_forcefully(end)


async def test_calls_of_a_client_share_a_connection_until_it_is_idle(autojump_clock: MockClock) -> None:
    core = Core()
    upstreams = Upstreams(core.open)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upstreams.run)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as calling:
            for _ in range(3):
                calling.start_soon(upstreams.call, "a", HEADERS)
        call = await upstreams.call("b", HEADERS)
        assert core.clients == ["a", "b"]
        call.close()
        await trio.sleep(60)
        await upstreams.call("a", HEADERS)  # its calls are under way
        assert core.clients == ["a", "b"]
        await upstreams.call("b", HEADERS)
        assert core.clients == ["a", "b", "b"]
        nursery.cancel_scope.cancel()
    await core.close()


async def test_a_lost_connection_fails_its_calls_and_is_replaced(autojump_clock: MockClock) -> None:
    core = Core()
    upstreams = Upstreams(core.open)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upstreams.run)
        await wait_all_tasks_blocked()
        call = await upstreams.call("a", HEADERS)
        await core.ends[0].aclose()
        with pytest.raises(UpstreamLost):
            await call.receive()
        call.close()
        await wait_all_tasks_blocked()
        await upstreams.call("a", HEADERS)
        assert core.clients == ["a", "a"]
        with pytest.raises(UpstreamLost, match="no connection to the core"):
            await upstreams.call("refused", HEADERS)
        nursery.cancel_scope.cancel()
    await core.close()
