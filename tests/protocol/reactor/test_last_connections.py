"""Connections that come in the moment in which a listener closes."""

from __future__ import annotations

import sys

import pytest
import trio

from protocol.reactor.last_connections import refuse_more
from protocol.reactor.listening import open_listeners

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a packet filter of Linux")


@pytest.mark.slow
async def test_every_client_that_got_a_connection_is_served(nursery: trio.Nursery) -> None:
    """Clients connect without pause. None that has a connection is reset; others are refused."""
    listeners = await open_listeners("127.0.0.1", 0, backlog=1024)
    port = listeners[0].socket.getsockname()[1]
    served, refused = 0, trio.Event()

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(await stream.receive_some())

    async def ask() -> None:
        nonlocal served
        while not refused.is_set():
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                refused.set()
                return
            async with stream:
                await stream.send_all(b"x")
                assert await stream.receive_some() == b"x"
                served += 1

    async with trio.open_nursery() as clients, trio.open_nursery() as handlers:
        with trio.CancelScope() as accepting:
            async with trio.open_nursery() as loop:
                for _ in range(8):
                    clients.start_soon(ask)

                async def end() -> None:
                    while served < 200:
                        await trio.lowlevel.checkpoint()
                    await refuse_more(listeners)
                    accepting.cancel()

                loop.start_soon(end)
                await trio.serve_listeners(answer, listeners, handler_nursery=handlers)
    assert served >= 200
