"""HTTP/1 clients that end their sending direction behind their requests: they get whole answers, and who has gone is
found out all the same."""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress

import h11
import pytest
import trio
import trio.testing

from protocol.datatypes import DataType
from protocol.http.connections import LOOK_SECONDS, serve_app
from protocol.http.exchange import Exchange
from protocol.http.http1.half_close import STATUS_LINE_START, HalfClose
from protocol.http.settings import ConnectionLimits
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from tests.protocol.http.conftest import Serve, Served
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.http1.test_connection import EMPTY, INFER, Client, chunked, connect, head, sized
from tests.protocol.http.test_tls import Authority, authority
from tests.protocol.http.test_tls import connect as connect_tls

pytestmark = pytest.mark.slow

__all__ = ["authority"]

# In a task, and without one.
TASK, CALL = "/v2/models/gate/generate", "/v2/models/gate/infer"
BODIES = {TASK: b"{}", CALL: EMPTY}


async def first_probe(client: Client) -> None:
    """The server has noticed the half-close when it begins the status line."""
    with trio.fail_after(10):
        client._data += bytes(await client.stream.receive_some(1))
    assert STATUS_LINE_START.startswith(client._data)


@pytest.mark.parametrize("path", [TASK, CALL])
async def test_a_slow_answer_comes_whole(serve: Serve, path: str) -> None:
    core = FakeCore()
    client = await connect(await serve(core))
    await client.send(sized(path, BODIES[path]))
    await client.stream.send_eof()
    await core.started.wait()
    await first_probe(client)
    core.gate.set()
    status, headers, body = await client.response()
    assert (status, headers["connection"], json.loads(body)["model_name"]) == (200, "close", "gate")
    assert await client.is_at_end()


async def test_pipelined_requests_before_it_are_all_answered(serve: Serve) -> None:
    core = FakeCore()
    client = await connect(await serve(core))
    await client.send(sized(CALL, b'{"id":"0","inputs":[]}'))
    await core.started.wait()
    await client.send(b"".join(sized(INFER, b'{"id":"%d","inputs":[]}' % number) for number in range(1, 9)))
    await client.send(sized(TASK, b'{"id":"9"}'))
    await client.stream.send_eof()
    core.gate.set()
    assert [json.loads((await client.response())[2])["id"] for _ in range(10)] == [str(n) for n in range(10)]
    assert await client.is_at_end()


class Large(FakeCore):
    async def _answer(self, request: InferenceRequest) -> InferenceResponse:
        await trio.lowlevel.checkpoint()
        return InferenceResponse("m", 1, [Tensor("OUT", DataType.UINT8, (30_000_000,), bytes(30_000_000))])


BINARY_OUTPUT = b'{"inputs":[],"parameters":{"binary_data_output":true}}'


@pytest.mark.parametrize("framing", ["Content-Length", "Transfer-Encoding"])
async def test_a_large_answer_that_is_being_sent_is_not_cut(serve: Serve, framing: str) -> None:
    client = await connect(await serve(Large()))
    if framing == "Content-Length":
        await client.send(sized(INFER, BINARY_OUTPUT))
    else:  # takes a task
        await client.send(head(INFER, "Transfer-Encoding: chunked") + chunked(BINARY_OUTPUT))
    assert (await client.stream.receive_some(1)) == b"H"
    await client.stream.send_eof()
    await trio.sleep(5 * LOOK_SECONDS)  # so that it is seen while the rest waits to be sent
    client._data = b"H"
    status, _, body = await client.response()
    assert (status, len(body) > 30_000_000) == (200, True)


def reset(client: Client) -> None:
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.stream.socket.close()


def close(client: Client) -> None:
    client.stream.socket.close()


async def half_close_first(server: Served, path: str, core: FakeCore) -> Client:
    client = await connect(server)
    await client.send(sized(path, BODIES[path]))
    await core.started.wait()
    await client.stream.send_eof()
    await first_probe(client)
    return client


@pytest.mark.parametrize("leave", [reset, close])
@pytest.mark.parametrize("path", [TASK.replace("gate", "wait"), CALL.replace("gate", "wait")])
async def test_a_client_that_has_gone_is_given_up(serve: Serve, path: str, leave: Callable[[Client], None]) -> None:
    core = FakeCore()
    client = await connect(await serve(core))
    await client.send(sized(path, BODIES[path.replace("wait", "gate")]))
    await core.started.wait()
    leave(client)
    with trio.fail_after(10):
        await core.cancelled.wait()


@pytest.mark.parametrize("path", [TASK, CALL])
async def test_one_that_goes_after_a_half_close_is_given_up(serve: Serve, path: str) -> None:
    core = FakeCore()
    server = await serve(core)
    client = await half_close_first(server, path, core)
    close(client)
    with trio.fail_after(10):
        await core.cancelled.wait()
    assert server.services.memory.held == 0


class Streaming:
    """An application that sends an event whenever the test says so."""

    def __init__(self) -> None:
        self.says, self.events = trio.open_memory_channel[bytes](10)
        self.cancelled = trio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.start(200, ())
        try:
            async for event in self.events:
                await exchange.send(event)
        except trio.Cancelled:
            self.cancelled.set()
            raise
        await exchange.end()


async def stream_of(app: Streaming, nursery: trio.Nursery) -> trio.SocketStream:
    host, port = await nursery.start(serve_app, app, "127.0.0.1", 0, ConnectionLimits(), trio.Event())
    stream = await trio.open_tcp_stream(host, port)
    await stream.send_all(head("/", method="GET"))
    return stream


async def test_a_slow_stream_of_events_comes_whole(nursery: trio.Nursery) -> None:
    """Zeros before the size of a chunk mean nothing to any parser; between all chunks, and before the last one."""
    app = Streaming()
    stream = await stream_of(app, nursery)
    await stream.send_eof()
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    parser.send(h11.EndOfMessage())
    received, events = b"", b""

    async def read_until(end: bytes) -> None:
        nonlocal received
        while not received.endswith(end):
            with trio.fail_after(10):
                received += bytes(await stream.receive_some())

    for event in (b"one", b"two"):
        await read_until(b"\r\n0")
        app.says.send_nowait(event)
        await read_until(event + b"\r\n")
    await app.says.aclose()
    await read_until(b"0\r\n\r\n")
    parser.receive_data(received)
    while not isinstance(part := parser.next_event(), h11.EndOfMessage):
        events += part.data if isinstance(part, h11.Data) else b""
    assert events == b"onetwo"
    assert await stream.receive_some() == b""
    await stream.aclose()


async def test_a_stream_whose_client_goes_between_two_events_is_cancelled(nursery: trio.Nursery) -> None:
    app = Streaming()
    stream = await stream_of(app, nursery)
    assert (await stream.receive_some()).endswith(b"\r\n\r\n")
    await stream.aclose()
    with trio.fail_after(10):
        await app.cancelled.wait()


async def test_a_goodbye_of_tls_is_a_half_close(serve: Serve, authority: Authority) -> None:
    """TLS 1.3 lets the server go on (RFC 8446, 6.1)."""
    core = FakeCore()
    stream = await connect_tls(await serve(core, authority.settings()), authority.client())
    await stream.send_all(sized(CALL, EMPTY))
    await core.started.wait()
    with pytest.raises(ssl.SSLWantReadError):
        stream._ssl_object.unwrap()  # makes the goodbye, and wants the server's
    await stream.transport_stream.send_all(stream._outgoing.read())
    received = b""
    with trio.fail_after(10):
        while not core.gate.is_set() or b"\r\n\r\n" not in received:
            with trio.move_on_after(10 * LOOK_SECONDS):
                stream._incoming.write(await stream.transport_stream.receive_some())
                with suppress(ssl.SSLWantReadError):  # session tickets alone, or a part of a record
                    received += stream._ssl_object.read()
            core.gate.set()
    assert received.startswith(b"HTTP/1.1 200")


def test_the_status_line_is_sent_byte_by_byte_at_growing_intervals() -> None:
    half_close = HalfClose()
    now, times, sent = 0.0, [], b""
    while len(sent) < len(STATUS_LINE_START):
        if probe := half_close.probe(now):
            half_close.note_sent(now)
            sent += probe
            times.append(now)
        now += 1
    assert sent == STATUS_LINE_START
    assert times == [0, 1, 3, 7, 15, 31, 63, 127, 255]
    assert half_close.probe(1e9) == b""
    assert half_close.rest_of(b"HTTP/1.1 200 OK") == b"200 OK"
