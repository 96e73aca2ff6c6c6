"""The HTTP service on loopback, driven by httpx and by plain sockets."""

from __future__ import annotations

from dataclasses import replace

import httpx
import numpy as np
import pytest
import trio
import trio.testing

from protocol.datatypes import DataType
from protocol.http.server import ConnectionLimits, HttpSettings, serve_http
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from tests.protocol.http.conftest import Serve
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.wire import infer_body, read_outputs

LOOPBACK = HttpSettings(host="127.0.0.1", port=0)
INFER = "/v2/models/echo/infer"
EMPTY = b'{"inputs":[]}'


def request_head(path: str, *headers: str, method: str = "POST") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: x", *headers, "", "")).encode()


async def read_response(stream: trio.SocketStream) -> tuple[int, bytes]:
    """One response with a content-length, from a stream that stays open."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await _some(stream)
    head, body = data.split(b"\r\n\r\n", 1)
    lines = head.lower().split(b"\r\n")
    (size,) = (int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
    while len(body) < size:
        body += await _some(stream)
    assert len(body) == size
    return int(lines[0].split()[1]), body


async def _some(stream: trio.SocketStream) -> bytes:
    data = bytes(await stream.receive_some())
    assert data, "the server closed the connection"
    return data


async def read_to_end(stream: trio.SocketStream) -> bytes:
    data = b""
    async for part in stream:
        data += part
    return data


async def test_every_kind_of_answer_over_one_connection(serve: Serve) -> None:
    """httpx keeps its connection alive; HEAD has the headers of GET."""
    server = await serve()
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/v2/health/live")).status_code == 200
        metadata = await client.get("/v2")
        assert metadata.json()["name"] == "trioton"
        head = await client.head("/v2")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == metadata.headers["content-length"]
        assert (await client.get("/nowhere")).json()["error"] == "Not Found"
        assert (await client.put("/v2")).status_code == 405
        assert (await client.post("/v2/repository/index")).json()[0]["name"] == "echo"
        answer = await client.post("/v2/models/broken/infer", content=EMPTY)
        named = {"request_id": answer.headers["x-request-id"]}
        assert (answer.status_code, answer.json()) == (400, {"error": "failed", **named})


async def test_a_large_binary_tensor_both_ways(serve: Serve) -> None:
    """Larger than any buffer on the way, with a known length and chunked, compressed and not."""
    server = await serve()
    array = np.random.default_rng(0).integers(0, 100, 1_000_000, np.int32)
    body, size = infer_body([("A", DataType.INT32, array, True)], parameters={"binary_data_output": True})
    headers = {"inference-header-content-length": str(size)}

    async def chunks() -> object:
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    async with httpx.AsyncClient(base_url=server.url) as client:
        for content in (body, chunks()):
            for accept in ("identity", "gzip"):
                if accept == "gzip" and content is not body:
                    continue  # a stream can be sent once
                answer = await client.post(INFER, content=content, headers={**headers, "accept-encoding": accept})  # type: ignore[arg-type]  # an async iterator is one
                assert answer.headers.get("content-encoding", "identity") == accept
                split = int(answer.headers["inference-header-content-length"])
                found = read_outputs(answer.content[:split], answer.content[split:])
                assert np.array_equal(found["OUT_A"], array)


@pytest.mark.parametrize("framing", ["Content-Length: 100000000", "Transfer-Encoding: chunked"])
async def test_a_body_over_the_limit_is_refused_while_it_streams_in(serve: Serve, framing: str) -> None:
    """The whole answer is there before the body has ended; the client then stops as it likes."""
    server = await serve(settings=replace(LOOPBACK, max_input_size=100_000))
    stream = await server.connect()
    await stream.send_all(request_head(INFER, framing))
    if "chunked" in framing:
        for _ in range(11):
            await stream.send_all(b"2710\r\n" + b" " * 10_000 + b"\r\n")
    status, body = await read_response(stream)
    assert status == 413
    assert b"exceeds the maximum allowed input size of 100000 bytes" in body
    await stream.send_all(b"2710\r\n" + b" " * 10_000 + b"\r\n")  # the connection still takes what follows
    await stream.send_eof()
    assert await read_to_end(stream) == b""


async def test_a_client_that_sends_first_and_reads_later_gets_its_refusal(serve: Serve) -> None:
    """Most clients send the whole body before they look: more than sockets buffer, so the server must go on reading."""
    server = await serve(settings=replace(LOOPBACK, max_input_size=1000))
    body = b" " * 20_000_000
    stream = await server.connect()
    await stream.send_all(request_head(INFER, f"Content-Length: {len(body)}") + body)
    status, _ = await read_response(stream)
    assert status == 413


async def test_a_refused_client_that_never_ends_is_closed(serve: Serve) -> None:
    """After `linger` seconds, even while it still sends."""
    server = await serve(settings=replace(LOOPBACK, max_input_size=1000, linger=0.05))
    stream = await server.connect()
    await stream.send_all(request_head(INFER, "Transfer-Encoding: chunked"))
    with pytest.raises(trio.BrokenResourceError), trio.fail_after(20):
        await send_forever(stream)


async def send_forever(stream: trio.SocketStream) -> None:
    while True:
        await stream.send_all(b"2710\r\n" + b" " * 10_000 + b"\r\n")


async def test_a_client_that_leaves_cancels_its_inference(serve: Serve) -> None:
    server = await serve()
    stream = await server.connect()
    await stream.send_all(request_head("/v2/models/wait/infer", f"Content-Length: {len(EMPTY)}") + EMPTY)
    await server.core.started.wait()
    await stream.aclose()
    with trio.fail_after(10):
        await server.core.cancelled.wait()
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/v2/health/live")).status_code == 200


@pytest.mark.slow
async def test_stopping_finishes_what_is_in_flight(serve: Serve) -> None:
    """No new connection is taken, an idle one is closed, the request in flight is answered, then the call returns."""
    server = await serve()
    idle = await server.connect()
    await idle.send_all(request_head("/v2/health/live", method="GET"))
    assert (await read_response(idle))[0] == 200
    busy = await server.connect()
    await busy.send_all(request_head("/v2/models/gate/infer", f"Content-Length: {len(EMPTY)}") + EMPTY)
    await server.core.started.wait()
    server.stop.set()
    with trio.fail_after(10):
        assert await read_to_end(idle) == b""
    with pytest.raises(OSError, match="all attempts to connect"):
        await server.connect()
    assert not server.ended.is_set()
    server.core.gate.set()
    with trio.fail_after(10):
        assert (await read_response(busy))[0] == 200
        assert await read_to_end(busy) == b""
        await server.ended.wait()


async def test_stopping_waits_for_a_body_that_is_still_coming(serve: Serve) -> None:
    """A request is in flight once its headers have been taken."""
    server = await serve()
    stream = await server.connect()
    await stream.send_all(request_head(INFER, f"Content-Length: {len(EMPTY)}", "Expect: 100-continue"))
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 100")
    server.stop.set()
    await trio.testing.wait_all_tasks_blocked()
    await stream.send_all(EMPTY)
    with trio.fail_after(10):
        assert (await read_response(stream))[0] == 200
        await server.ended.wait()


async def test_cancelling_ends_everything_at_once(serve: Serve) -> None:
    """An inference, an idle connection, and a client that does not read its response: all are cut off."""
    core = FakeCore(respond=large_response)
    server = await serve(core)
    idle, waiting, deaf = [await server.connect() for _ in range(3)]
    await idle.send_all(b"GET /v2")
    await deaf.send_all(request_head(INFER, f"Content-Length: {len(EMPTY)}") + EMPTY)
    await trio.lowlevel.wait_readable(deaf.socket)
    core.started = trio.Event()
    await waiting.send_all(request_head("/v2/models/wait/infer", f"Content-Length: {len(EMPTY)}") + EMPTY)
    await core.started.wait()
    server.scope.cancel()
    with trio.fail_after(10):
        await server.ended.wait()
    assert core.cancelled.is_set()


def large_response(request: InferenceRequest) -> InferenceResponse:
    """More than the sockets between hold."""
    return InferenceResponse("echo", 1, [Tensor("O", DataType.BOOL, (8_000_000,), b"\1" * 8_000_000)])


async def test_a_client_that_does_not_read_is_cut_off(serve: Serve) -> None:
    settings = replace(LOOPBACK, connections=ConnectionLimits(send_timeout=0.05))
    server = await serve(FakeCore(respond=large_response), settings)
    stream = await server.connect()
    body = b'{"inputs":[],"parameters":{"binary_data_output":true}}'
    await stream.send_all(request_head(INFER, f"Content-Length: {len(body)}") + body)
    await server.core.started.wait()
    server.stop.set()
    with trio.fail_after(10):
        await server.ended.wait()  # nobody has read a byte


async def test_a_body_that_stops_coming_is_answered(serve: Serve) -> None:
    server = await serve(settings=replace(LOOPBACK, body_timeout=0.05))
    stream = await server.connect()
    await stream.send_all(request_head(INFER, "Content-Length: 50"))
    with trio.fail_after(10):
        assert (await read_response(stream))[0] == 408


async def test_a_port_in_use_is_named(serve: Serve) -> None:
    server = await serve()
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{server.port}: "):
        await serve_http(make_services(), replace(LOOPBACK, port=server.port), trio.Event())


@pytest.mark.slow
async def test_two_servers_in_one_process(serve: Serve) -> None:
    """Stopping one leaves the other."""
    first, second = await serve(FakeCore(ready=False)), await serve()
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{first.url}/v2/health/ready")).status_code == 400
        assert (await client.get(f"{second.url}/v2/health/ready")).status_code == 200
        first.stop.set()
        with trio.fail_after(10):
            await first.ended.wait()
        assert (await client.get(f"{second.url}/v2/health/ready")).status_code == 200
