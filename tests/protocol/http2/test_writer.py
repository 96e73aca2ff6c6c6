"""The writer joins what is put in a burst, and tells when it has written."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.http2.writer import Writer
from protocol.reactor.transport import wire_over


async def test_what_is_put_while_a_write_is_under_way_leaves_together(nursery: trio.Nursery) -> None:
    client_end, server_end = trio.testing.lockstep_stream_pair()
    progress: list[int] = []
    writer = Writer(wire_over(server_end), lambda: progress.append(writer.backlog), send_timeout=60)
    nursery.start_soon(writer.run)
    writer.put([b"a"])
    writer.put([b"b"])
    await trio.testing.wait_all_tasks_blocked()
    writer.put([b"c"])
    writer.put([b"d"])
    assert writer.backlog == 4
    assert await client_end.receive_some() == b"ab"
    assert await client_end.receive_some() == b"cd"
    await trio.testing.wait_all_tasks_blocked()
    assert progress == [2, 0]


async def test_large_buffers_leave_as_they_are() -> None:
    """Over a socket, in as many pieces as it takes, in order."""
    listener, *_ = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listener.socket.getsockname()
    async with listener, await trio.open_tcp_stream(host, port) as client, await listener.accept() as server:
        wire = wire_over(server)
        writer = Writer(wire, lambda: None, send_timeout=60)
        sent = [bytes([number % 256]) * (1 + number * 37 % 5000) for number in range(2000)] + [bytes(3_000_000)]
        received = b""

        async def read() -> None:
            nonlocal received
            async for data in client:
                received += data

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            writer.put(sent)
            async with trio.open_nursery() as writing:
                writing.start_soon(writer.run)
                await writer.finish()
            assert writer.backlog == 0
            await wire.send_eof()
        await wire.aclose()
        assert received == b"".join(sent)


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_socket_that_is_closed_ends_it(is_ours: bool) -> None:
    listener, *_ = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listener.socket.getsockname()
    async with listener, await trio.open_tcp_stream(host, port) as client, await listener.accept() as server:
        wire = wire_over(server)
        writer = Writer(wire, lambda: None, send_timeout=60)
        writer.put([bytes(20_000_000), bytes(20_000_000)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon((wire if is_ours else client).aclose)
            with pytest.raises((trio.ClosedResourceError, trio.BrokenResourceError)):
                await writer.run()
        await wire.aclose()


async def test_finish_waits_until_all_is_written(nursery: trio.Nursery) -> None:
    client_end, server_end = trio.testing.lockstep_stream_pair()
    writer = Writer(wire_over(server_end), lambda: None, send_timeout=60)
    nursery.start_soon(writer.run)
    writer.put([b"last"])
    finished = trio.Event()

    async def finish() -> None:
        await writer.finish()
        finished.set()

    nursery.start_soon(finish)
    await trio.testing.wait_all_tasks_blocked()
    assert not finished.is_set()
    assert await client_end.receive_some() == b"last"
    await finished.wait()


async def test_a_lost_peer_ends_it(nursery: trio.Nursery) -> None:
    """With the transport's error, and whoever waits for the end goes on."""
    client_end, server_end = trio.testing.memory_stream_pair()
    await client_end.aclose()
    writer = Writer(wire_over(server_end), lambda: None, send_timeout=60)
    writer.put([b"x"])
    with pytest.raises(trio.BrokenResourceError):
        await writer.run()
    await writer.finish()


async def test_a_peer_that_reads_nothing_ends_it(autojump_clock: trio.testing.MockClock) -> None:
    client_end, server_end = trio.testing.lockstep_stream_pair()
    writer = Writer(wire_over(server_end), lambda: None, send_timeout=60)
    writer.put([b"x"])
    with pytest.raises(trio.TooSlowError):
        await writer.run()
    assert trio.current_time() == pytest.approx(60)
    await client_end.aclose()
