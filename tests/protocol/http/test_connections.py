"""Connections: HTTP/2 beside HTTP/1, and failures that stay within their connection."""

from __future__ import annotations

import logging

import h2.connection
import h2.events
import pytest
import trio
import trio.testing
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from protocol.http.connections import ClientStream, serve_app
from protocol.http.server import HttpSettings
from protocol.http.settings import ConnectionLimits
from tests.protocol.http.conftest import Serve
from tests.protocol.http.fake_core import FakeCore

EMPTY = b'{"inputs":[]}'


class Http2Client:
    """An HTTP/2 connection with prior knowledge, one stream at a time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.h2 = h2.connection.H2Connection()
        self.h2.initiate_connection()

    async def start(self, method: str, path: str, body: bytes | None = b"") -> int:
        """Send a request; `body` None leaves it open."""
        stream_id = self.h2.get_next_available_stream_id()
        headers = [(":method", method), (":path", path), (":authority", "x"), (":scheme", "http")]
        self.h2.send_headers(stream_id, headers, end_stream=body == b"")
        if body:
            self.h2.send_data(stream_id, body, end_stream=True)
        await self.flush()
        return stream_id

    async def flush(self) -> None:
        await self.stream.send_all(self.h2.data_to_send())

    async def next_events(self) -> list[h2.events.Event] | None:
        """None when the server has closed the connection."""
        data = bytes(await self.stream.receive_some())
        if not data:
            return None
        events = self.h2.receive_data(data)
        await self.flush()
        return events

    async def answer(self, stream_id: int) -> tuple[int, bytes]:
        status, body = 0, b""
        ended = False
        while not ended:
            events = await self.next_events()
            assert events is not None, "the server closed the connection"
            for event in events:
                if getattr(event, "stream_id", None) != stream_id:
                    continue
                if isinstance(event, h2.events.ResponseReceived):
                    status = int(dict(event.headers)[b":status"])
                elif isinstance(event, h2.events.DataReceived):
                    body += event.data or b""
                ended = ended or isinstance(event, h2.events.StreamEnded)
        return status, body


async def test_http2_with_prior_knowledge(serve: Serve) -> None:
    """Several requests over one connection, one of them larger than a flow-control window."""
    server = await serve(settings=HttpSettings(host="127.0.0.1", port=0))
    client = Http2Client(await server.connect())
    assert (await client.answer(await client.start("GET", "/v2/health/live"))) == (200, b"")
    status, body = await client.answer(await client.start("POST", "/v2/models/echo/infer", EMPTY))
    assert (status, body[:20]) == (200, b'{"model_name":"echo"')
    status, body = await client.answer(await client.start("POST", "/v2/models/echo/infer", b"{"))
    assert (status, body[:10]) == (400, b'{"error":"')


async def test_http2_refuses_a_body_early(serve: Serve) -> None:
    """The answer comes while the stream's body is open; the connection goes on."""
    server = await serve(settings=HttpSettings(host="127.0.0.1", port=0, max_input_size=100, linger=0.05))
    client = Http2Client(await server.connect())
    stream_id = await client.start("POST", "/v2/models/echo/infer", None)
    client.h2.send_data(stream_id, b" " * 101)
    await client.flush()
    status, _ = await client.answer(stream_id)
    assert status == 413
    assert (await client.answer(await client.start("GET", "/v2/health/live")))[0] == 200


async def test_a_stream_reset_cancels_its_inference(serve: Serve) -> None:
    """The HTTP/2 form of a client that leaves; other streams of the connection go on."""
    server = await serve()
    client = Http2Client(await server.connect())
    stream_id = await client.start("POST", "/v2/models/wait/infer", EMPTY)
    await server.core.started.wait()
    client.h2.reset_stream(stream_id)
    await client.flush()
    with trio.fail_after(10):
        await server.core.cancelled.wait()
    assert (await client.answer(await client.start("GET", "/v2/health/live")))[0] == 200


async def test_an_error_in_one_connection_ends_that_one_only(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Data for a stream that was answered is more than hypercorn bears."""
    server = await serve(settings=HttpSettings(host="127.0.0.1", port=0, linger=0))
    good, bad = Http2Client(await server.connect()), Http2Client(await server.connect())
    stream_id = await bad.start("POST", "/nowhere", None)
    assert (await bad.answer(stream_id))[0] == 404
    with caplog.at_level(logging.WARNING):
        bad.h2.send_data(stream_id, b"late")
        await bad.flush()
        with trio.fail_after(10):
            while await bad.next_events() is not None:
                pass
        await trio.testing.wait_all_tasks_blocked()
    assert "a connection ended with an error: KeyError(1)" in caplog.text
    assert (await good.answer(await good.start("GET", "/v2/health/live")))[0] == 200


async def test_an_application_that_fails_is_answered_for(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """hypercorn answers 500 in its place, and its log is ours, not one on stderr."""

    async def app(scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        raise ValueError("a defect")

    host, port = await nursery.start(serve_app, app, "127.0.0.1", 0, ConnectionLimits(), trio.Event())
    async with await trio.open_tcp_stream(host, port) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 500")
    (record,) = caplog.records
    assert record.name == "protocol.http.connections"
    assert logging.getLogger("hypercorn.error").handlers == []


async def test_nothing_is_logged_of_ordinary_traffic(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = await serve(FakeCore())
    with caplog.at_level(logging.INFO, "protocol"):
        client = Http2Client(await server.connect())
        await client.answer(await client.start("GET", "/v2"))
        server.stop.set()
        with trio.fail_after(10):
            await server.ended.wait()
    assert caplog.records == []


async def test_writes_have_a_deadline_for_each_piece(autojump_clock: trio.testing.MockClock) -> None:
    """A slow reader gets all of a large response, however long it takes; one that stops is cut off."""
    left, right = await socket_pair()
    data = bytes(range(256)) * 40_000
    received = bytearray()

    async def read_slowly(total: int) -> None:
        while len(received) < total:
            received.extend(await right.receive_some(200_000))
            await trio.sleep(0.5)

    async with left, right:
        client = ClientStream(left, send_timeout=5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_slowly, len(data))
            await client.send_all(data)
        assert received == data
        with pytest.raises(trio.BrokenResourceError, match="took no data for 5 seconds"):
            await client.send_all(data)
        assert left.socket.fileno() == -1


async def socket_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    left, right = trio.socket.socketpair()
    return trio.SocketStream(left), trio.SocketStream(right)
