"""HTTP/2 on plain connections: requests as in HTTP/1, and what a connection does to a client that overdoes it."""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import secrets
import struct
import time
from dataclasses import replace

import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import hyperframe.frame as frames
import numpy as np
import pytest
import trio
import trio.testing

from protocol.datatypes import DataType
from protocol.http.server import HttpSettings
from protocol.http.settings import ConnectionLimits
from protocol.limits.flood import FloodGuard
from tests.protocol.http.conftest import Serve, Served
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.http2_client import Http2Client
from tests.protocol.http.wire import infer_body, read_outputs

LOOPBACK = HttpSettings(host="127.0.0.1", port=0)
INFER = "/v2/models/echo/infer"
WAIT = "/v2/models/wait/infer"
GATE = "/v2/models/gate/infer"
EMPTY = b'{"inputs":[]}'


async def connect(server: Served) -> Http2Client:
    return Http2Client(await server.connect())


def limited(**limits: float) -> HttpSettings:
    return replace(LOOPBACK, connections=ConnectionLimits(**limits))  # type: ignore[arg-type]  # sizes and seconds


async def is_alive(server: Served) -> bool:
    return (await (await connect(server)).get("/v2/health/live"))[0] == 200


async def test_requests_of_every_kind(serve: Serve) -> None:
    """Over one connection, one after the other and all at once."""
    client = await connect(await serve())
    assert await client.get("/v2/health/live") == (200, b'{"live":true}')
    status, body = await client.answer(await client.start("POST", INFER, EMPTY))
    assert (status, json.loads(body)["model_name"]) == (200, "echo")
    assert (await client.answer(await client.start("POST", INFER, b"{")))[0] == 400
    assert (await client.answer(await client.start("PUT", "/v2")))[0] == 405
    assert (await client.answer(await client.start("HEAD", "/v2"))) == (200, b"")
    ids = [await client.start("GET", "/v2") for _ in range(20)]
    for stream_id in reversed(ids):
        assert (await client.answer(stream_id))[0] == 200


async def test_a_tensor_larger_than_every_window(serve: Serve) -> None:
    """Sent and received in pieces, as the windows open."""
    array = np.random.default_rng(0).integers(0, 100, 400_000, np.int32)
    body, size = infer_body([("A", DataType.INT32, array, True)], parameters={"binary_data_output": True})
    client = await connect(await serve())
    stream_id = await client.start("POST", INFER, None, [("inference-header-content-length", str(size))])
    position = 0
    while position < len(body):
        window = min(client.h2.local_flow_control_window(stream_id), client.h2.max_outbound_frame_size)
        if not window:
            await client.more()
            continue
        client.h2.send_data(stream_id, body[position : position + window])
        position += window
        await client.flush()
    client.h2.end_stream(stream_id)
    await client.flush()
    status, answer = await client.answer(stream_id)
    assert status == 200
    split = len(answer) - array.nbytes
    assert np.array_equal(read_outputs(answer[:split], answer[split:])["OUT_A"], array)


async def test_an_early_refusal_ends_only_its_stream(serve: Serve) -> None:
    """The answer comes while the body is still open; what comes after is dropped, and the connection goes on."""
    server = await serve(settings=replace(LOOPBACK, max_input_size=100, linger=0.05))
    client = await connect(server)
    stream_id = await client.start("POST", INFER, None)
    client.h2.send_data(stream_id, b" " * 101)
    await client.flush()
    assert (await client.answer(stream_id))[0] == 413
    reset = await client.wait_for(h2.events.StreamReset, stream_id)
    assert reset.error_code == h2.errors.ErrorCodes.NO_ERROR
    # What was on its way when the reset came.
    late = frames.DataFrame(stream_id, b"late")
    await client.stream.send_all(late.serialize())
    assert await client.get("/v2/health/live") == (200, b'{"live":true}')


async def test_a_stream_reset_cancels_its_inference(serve: Serve) -> None:
    """The HTTP/2 form of a client that leaves; other streams of the connection go on."""
    server = await serve()
    client = await connect(server)
    stream_id = await client.start("POST", WAIT, EMPTY)
    await server.core.started.wait()
    client.h2.reset_stream(stream_id)
    await client.flush()
    with trio.fail_after(10):
        await server.core.cancelled.wait()
    assert (await client.get("/v2/health/live"))[0] == 200


async def test_streams_may_be_reset_for_ever_if_not_too_fast(serve: Serve) -> None:
    """Nothing of a stream that was reset stays behind."""
    server = await serve()
    client = await connect(server)
    for _ in range(4):
        ids = [client.send("POST", WAIT, EMPTY) for _ in range(40)]
        await client.flush()
        for stream_id in ids:
            client.h2.reset_stream(stream_id)
        await client.flush()
        assert (await client.get("/v2/health/live"))[0] == 200
    assert server.services.limits.counts() == {}


async def ended_by(client: Http2Client) -> int:
    """The code with which the server has ended the connection; answers may still come behind it."""
    code = (await client.raw_frame(frames.GoAwayFrame)).error_code
    assert isinstance(code, int)
    with trio.fail_after(20), contextlib.suppress(trio.BrokenResourceError):
        while await client.stream.receive_some():
            pass
    return code


@pytest.mark.slow
async def test_a_rapid_reset_on_a_busy_machine(
    serve: Serve, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which handles less of what came at one time, in a second, than the limit is."""
    passes = FloodGuard.passes

    def pass_slowly(guard: FloodGuard, now: float) -> bool:
        time.sleep(0.06)
        return passes(guard, now)

    monkeypatch.setattr(FloodGuard, "passes", pass_slowly)
    await test_rapid_reset_ends_the_connection(serve, nursery)


async def test_rapid_reset_ends_the_connection(serve: Serve, nursery: trio.Nursery) -> None:
    server = await serve(settings=limited(max_stream_resets=20))  # in a second, which many take on a busy machine
    client = await connect(server)
    for _ in range(220):
        stream_id = client.send("POST", WAIT, EMPTY)
        client.h2.reset_stream(stream_id)
    nursery.start_soon(client.flush)
    assert await ended_by(client) == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    assert server.services.limits.counts() == {("http", "max_stream_resets"): 1}
    assert await is_alive(server)


def priority_frame(stream_id: int) -> bytes:
    return frames.PriorityFrame(stream_id, depends_on=0, stream_weight=5).serialize()


FLOODS = {
    "ping": frames.PingFrame(0, opaque_data=b"12345678").serialize(),
    "settings": frames.SettingsFrame(0, settings={3: 100}).serialize(),
    "settings ack": frames.SettingsFrame(0, flags=["ACK"]).serialize(),
    "priority": priority_frame(101),
    "unknown frame": b"\0\0\0\xee\0\0\0\0\0",
    "empty data": frames.DataFrame(1, b"").serialize(),
    "windows of the connection": frames.WindowUpdateFrame(0, window_increment=1).serialize(),
    "windows of a stream": frames.WindowUpdateFrame(1, window_increment=1).serialize(),
}


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS.values(), ids=list(FLOODS))
async def test_frames_that_only_make_work_end_the_connection(serve: Serve, nursery: trio.Nursery, flood: bytes) -> None:
    """When there are more than any client has a use for; fewer are put up with."""
    server = await serve(settings=limited(max_control_frames=300))
    client = await connect(server)
    await client.start("POST", WAIT, None)
    await client.stream.send_all(flood * 200)
    assert (await client.get("/v2/health/live"))[0] == 200
    assert server.services.limits.counts() == {}
    nursery.start_soon(send_what_goes, client.stream, flood * 5000)
    assert await ended_by(client) == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    assert server.services.limits.counts() == {("http", "max_control_frames"): 1}
    assert await is_alive(server)


@pytest.mark.parametrize("stream_id", [0, 1])
async def test_windows_without_a_reason_end_the_connection(serve: Serve, nursery: trio.Nursery, stream_id: int) -> None:
    """Of the connection, and of a stream that has ended."""
    server = await serve(settings=limited(max_control_frames=100))
    client = await connect(server)
    assert (await client.get("/v2/health/live"))[0] == 200
    update = frames.WindowUpdateFrame(stream_id, window_increment=1).serialize()
    await client.stream.send_all(update * 50)
    assert (await client.get("/v2/health/live"))[0] == 200
    assert server.services.limits.counts() == {}
    nursery.start_soon(send_what_goes, client.stream, update * 5000)
    assert await ended_by(client) == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    assert server.services.limits.counts() == {("http", "max_control_frames"): 1}
    assert await is_alive(server)


async def test_windows_that_open_as_data_is_read_are_no_flood(serve: Serve) -> None:
    """Two frames for each 4 kB, of the stream and of the connection, as some clients send them."""
    server = await serve(settings=limited(max_control_frames=20))
    client = await connect(server)
    array = np.zeros(100_000, np.int32)
    body, size = infer_body([("A", DataType.INT32, array, True)], parameters={"binary_data_output": True})
    stream_id = await client.start("POST", INFER, None, [("inference-header-content-length", str(size))])
    for start in range(0, len(body), 8192):
        while client.h2.local_flow_control_window(stream_id) < 8192:
            await client.more()
        client.h2.send_data(stream_id, body[start : start + 8192])
        await client.flush()
    client.h2.end_stream(stream_id)
    await client.flush()
    received = 0
    while received < array.nbytes:
        event = await client.wait_for(h2.events.DataReceived, stream_id)
        received += len(event.data)
        parts = -(-len(event.data) // 4096)
        for number in range(parts):
            increment = min(4096, len(event.data) - 4096 * number)
            client.h2.increment_flow_control_window(increment)
            with contextlib.suppress(h2.exceptions.StreamClosedError):
                client.h2.increment_flow_control_window(increment, stream_id)
        await client.flush()
    assert (await client.get("/v2/health/live"))[0] == 200
    assert server.services.limits.counts() == {}


async def send_what_goes(stream: trio.abc.Stream, data: bytes) -> None:
    """The server stops reading at some point."""
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(data)


async def test_priorities_are_not_remembered(serve: Serve) -> None:
    """More of them than hypercorn's tree holds leave the connection as it is."""
    client = await connect(await serve())
    await client.flush()
    for start in range(1, 1400, 200):  # in the time that their number is allowed for
        await client.stream.send_all(b"".join(priority_frame(n) for n in range(start, start + 200, 2)))
        assert (await client.get("/v2/health/live"))[0] == 200


async def test_continuation_without_end_ends_the_connection(serve: Serve) -> None:
    server = await serve()
    client = await connect(server)
    await client.flush()
    head = frames.HeadersFrame(1, b"\x82")
    more = frames.ContinuationFrame(1, b"\x00\x01a\x01b" * 10)
    await send_what_goes(client.stream, head.serialize() + more.serialize() * 1000)
    assert await ended_by(client) == h2.errors.ErrorCodes.PROTOCOL_ERROR
    assert await is_alive(server)


async def test_headers_that_are_too_large_are_answered(serve: Serve) -> None:
    server = await serve(settings=limited(max_header_size=4000))
    client = await connect(server)
    stream_id = await client.start("GET", "/v2", extra=[("x", "y" * 4000)])
    status, body = await client.answer(stream_id)
    assert status == 431
    assert json.loads(body)["error"] == (
        "the request's line and headers exceed the maximum allowed size of 4000 bytes. "
        "Use --http-max-header-size to increase the limit."
    )
    assert (await client.get("/v2/health/live"))[0] == 200
    assert server.services.limits.counts() == {("http", "max_header_size"): 1}


async def test_a_header_bomb_ends_the_connection(serve: Serve) -> None:
    """A few bytes each that refer to one large entry of the compressor's table."""
    server = await serve()
    client = await connect(server)
    await client.start("GET", "/v2", extra=[("x", "y" * 3000)])
    await client.start("GET", "/v2", extra=[("x", "y" * 3000)] * 1000)
    assert await ended_by(client) == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    assert server.services.limits.counts() == {("http", "max_header_size"): 1}
    assert await is_alive(server)


async def test_a_client_cannot_make_the_server_remember_more_headers(serve: Serve) -> None:
    """A table of 4 GiB is asked for; the responses still fit into 4096 bytes."""
    client = await connect(await serve())
    client.h2.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 2**31})
    await client.flush()
    await client.wait_for(h2.events.SettingsAcknowledged)
    assert (await client.get("/v2/health/live"))[0] == 200
    assert client.h2.decoder.header_table_size == 4096


async def test_more_settings_than_there_are_end_the_connection(serve: Serve) -> None:
    """They would all be kept; a few that nobody knows are ignored."""
    server = await serve()
    client = await connect(server)
    await client.flush()
    await client.stream.send_all(frames.SettingsFrame(0, settings={1000 + n: 1 for n in range(20)}).serialize())
    assert (await client.get("/v2/health/live"))[0] == 200
    await client.stream.send_all(frames.SettingsFrame(0, settings={1000 + n: 1 for n in range(1000)}).serialize())
    assert await ended_by(client) == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    assert await is_alive(server)


async def test_a_frame_is_refused_by_the_size_that_it_announces(serve: Serve) -> None:
    """Of 16 MB, of which nothing has come yet; those before it were taken."""
    server = await serve()
    client = await connect(server)
    assert (await client.get("/v2/health/live"))[0] == 200
    await client.stream.send_all(b"\xff\xff\xff" + frames.DataFrame(1).serialize()[3:])
    assert await ended_by(client) == h2.errors.ErrorCodes.FRAME_SIZE_ERROR
    assert await is_alive(server)


async def test_too_many_streams_are_answered(serve: Serve) -> None:
    """Before the client has seen how many there may be, one too many is answered and not punished."""
    server = await serve(settings=limited(max_concurrent_streams=2))
    client = await connect(server)
    waiting = [client.send("POST", WAIT, EMPTY) for _ in range(2)]
    refused = await client.start("POST", WAIT, EMPTY)
    status, body = await client.answer(refused)
    assert status == 429
    assert json.loads(body)["error"].startswith("2 requests are in flight on this connection, which is the maximum.")
    assert client.h2.remote_settings.max_concurrent_streams == 2
    for stream_id in waiting:
        client.h2.reset_stream(stream_id)
    assert (await client.get("/v2/health/live"))[0] == 200
    assert server.services.limits.counts() == {("http", "max_concurrent_streams"): 1}


@pytest.mark.slow
async def test_far_too_many_streams_in_one_burst_cost_those_within_nothing(serve: Serve, nursery: trio.Nursery) -> None:
    """One too many is answered, or refused where the client's window has no room for the answer."""
    server = await serve(settings=limited(max_concurrent_streams=2))
    client = await connect(server)
    within = [client.send("POST", GATE, EMPTY) for _ in range(2)]
    too_many = [client.send("POST", GATE, EMPTY) for _ in range(900)]
    nursery.start_soon(client.flush)
    refused: dict[int, bytes | int] = {}
    while len(refused) < len(too_many):
        assert await client.more()
        for event in list(client.events):
            if isinstance(event, h2.events.ResponseReceived) and event.stream_id in too_many:
                refused[event.stream_id] = dict(event.headers)[b":status"]
            elif isinstance(event, h2.events.StreamReset) and event.stream_id not in refused:
                refused[event.stream_id] = event.error_code
    assert set(refused) == set(too_many)
    assert set(refused.values()) == {b"429", h2.errors.ErrorCodes.REFUSED_STREAM}
    client.h2.increment_flow_control_window(1 << 20)
    await client.flush()
    server.core.gate.set()
    assert [(await client.answer(stream_id))[0] for stream_id in within] == [200, 200]
    assert server.services.limits.counts() == {("http", "max_concurrent_streams"): 900}


async def test_too_many_streams_all_the_time_end_the_connection(serve: Serve, nursery: trio.Nursery) -> None:
    server = await serve(settings=limited(max_concurrent_streams=2, max_control_frames=20))
    client = await connect(server)
    for _ in range(40):
        client.send("POST", WAIT, EMPTY)
    nursery.start_soon(client.flush)
    assert await ended_by(client) == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    with trio.fail_after(10):
        await server.core.cancelled.wait()
    assert server.services.limits.counts()["http", "max_control_frames"] == 1
    assert await is_alive(server)


async def test_a_connection_ends_in_good_order_after_its_requests(serve: Serve) -> None:
    """The last one is told so and answered; one more is refused, so that it can be tried on another connection."""
    server = await serve(FakeCore(), limited(max_requests_per_connection=2))
    client = await connect(server)
    assert (await client.get("/v2/health/live"))[0] == 200
    last = await client.start("POST", "/v2/models/gate/infer", EMPTY)
    goodbye = await client.wait_for(h2.events.ConnectionTerminated)
    assert goodbye.error_code == h2.errors.ErrorCodes.NO_ERROR
    more = frames.HeadersFrame(last + 2, client.h2.encoder.encode(client.headers("GET", "/v2")), flags=["END_HEADERS"])
    await client.stream.send_all(more.serialize())
    reset = await client.raw_frame(frames.RstStreamFrame)
    assert reset.error_code == h2.errors.ErrorCodes.REFUSED_STREAM
    server.core.gate.set()
    assert isinstance(await client.raw_frame(frames.HeadersFrame), frames.HeadersFrame)
    with trio.fail_after(10):
        while await client.stream.receive_some():
            pass
    assert server.services.limits.counts() == {("http", "max_requests_per_connection"): 1}


@pytest.mark.slow
async def test_stopping_finishes_what_is_in_flight(serve: Serve) -> None:
    server = await serve()
    idle, busy = await connect(server), await connect(server)
    assert (await idle.get("/v2/health/live"))[0] == 200
    stream_id = await busy.start("POST", "/v2/models/gate/infer", EMPTY)
    await server.core.started.wait()
    server.stop.set()
    assert await ended_by(idle) == h2.errors.ErrorCodes.NO_ERROR
    goodbye = await busy.wait_for(h2.events.ConnectionTerminated)
    assert goodbye.error_code == h2.errors.ErrorCodes.NO_ERROR
    assert not server.ended.is_set()
    server.core.gate.set()
    assert isinstance(await busy.raw_frame(frames.DataFrame), frames.DataFrame)
    with trio.fail_after(10):
        await busy.stream.aclose()
        await server.ended.wait()
    assert stream_id == 1


async def test_a_client_that_says_goodbye_gets_its_answers(serve: Serve) -> None:
    """GOAWAY says that no more requests come, not that nobody waits."""
    server = await serve()
    client = await connect(server)
    await client.start("POST", "/v2/models/gate/infer", EMPTY)
    await server.core.started.wait()
    await client.stream.send_all(frames.GoAwayFrame(0, last_stream_id=0).serialize())
    await trio.testing.wait_all_tasks_blocked()
    server.core.gate.set()
    status, body = await client.answer(1)
    assert (status, json.loads(body)["model_name"]) == (200, "gate")
    with trio.fail_after(10):
        await client.read_to_end()


async def test_a_client_that_takes_no_data_loses_its_stream(serve: Serve) -> None:
    """Its window stays shut; other streams of the connection go on."""
    server = await serve(settings=limited(send_timeout=0.1))
    client = await connect(server)
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    stream_id = await client.start("POST", INFER, EMPTY)
    reset = await client.wait_for(h2.events.StreamReset, stream_id)
    assert reset.error_code == h2.errors.ErrorCodes.CANCEL
    assert await client.answer(await client.start("HEAD", "/v2")) == (200, b"")
    assert server.services.limits.counts() == {("http", "send_timeout"): 1}


async def test_a_stream_of_events_waits_for_its_window(serve: Serve) -> None:
    """A model is not faster than its client: no more is kept for it than fits into the buffers on the way."""
    core = FakeCore(answers=10_000)
    client = await connect(await serve(core))
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    await client.start("POST", "/v2/models/many/generate_stream", b'{"IN":[1,2,3,4]}')
    await client.wait_for(h2.events.DataReceived)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert 0 < core.sent < 2000


@pytest.mark.parametrize("path", ["/v2/%zz", "/v2/\xff", "*", "", "v2", "/v2/models/\0/infer"])
async def test_strange_paths(serve: Serve, path: str) -> None:
    """Answered or reset, and only they."""
    client = await connect(await serve())
    stream_id = client.h2.get_next_available_stream_id()
    headers = [(n.encode(), v.encode("latin-1")) for n, v in client.headers("GET", path)]
    block = client.h2.encoder.encode(headers)
    await client.flush()
    frame = frames.HeadersFrame(stream_id, block, flags=["END_HEADERS", "END_STREAM"])
    await client.stream.send_all(frame.serialize())
    found = await client.raw_frame(frames.Frame)
    while found.stream_id != stream_id and not isinstance(found, frames.GoAwayFrame):
        found = await client.raw_frame(frames.Frame)
    assert isinstance(found, frames.HeadersFrame | frames.RstStreamFrame | frames.GoAwayFrame)


@pytest.mark.parametrize("extended", [False, True])
async def test_connect_is_no_method_here(serve: Serve, extended: bool) -> None:
    """hypercorn would open a WebSocket for it, or fall over the missing path."""
    client = await connect(await serve())
    stream_id = client.h2.get_next_available_stream_id()
    headers = [(":method", "CONNECT"), (":authority", "x")]
    if extended:
        headers += [(":scheme", "http"), (":path", "/v2"), (":protocol", "websocket")]
    client.h2.send_headers(stream_id, headers)
    await client.flush()
    status, body = await client.answer(stream_id)
    assert (status, json.loads(body)["error"]) == (405, "Method Not Allowed")


def upgrade(settings: str, connection: str = "Upgrade, HTTP2-Settings") -> bytes:
    head = f"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nUpgrade: h2c\r\n"
    return f"{head}HTTP2-Settings: {settings}\r\n\r\n".encode()


async def test_an_upgrade_to_http2(serve: Serve) -> None:
    """As `curl --http2` does it without TLS: the first answer comes in HTTP/2 already."""
    server = await serve()
    stream = await server.connect()
    client = Http2Client(stream)
    del client.h2
    client.h2 = h2.connection.H2Connection()
    settings = client.h2.initiate_upgrade_connection()
    assert settings is not None
    await stream.send_all(upgrade(settings.decode()))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await stream.receive_some(1)
    assert head.startswith(b"HTTP/1.1 101 ")
    await client.flush()
    status, body = await client.answer(1)
    assert (status, json.loads(body)["name"]) == (200, "trioton")
    assert (await client.get("/v2/health/live"))[0] == 200


@pytest.mark.parametrize(
    "request_",
    [
        upgrade("!!!"),
        upgrade(base64.urlsafe_b64encode(b"12345").decode()),
        upgrade("", "close"),
        upgrade("", "Upgrade"),
    ],
)
async def test_an_upgrade_that_is_none_is_ignored(serve: Serve, request_: bytes) -> None:
    stream = await (await serve()).connect()
    await stream.send_all(request_)
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_an_upgrade_with_wrong_settings_ends_the_connection(serve: Serve) -> None:
    server = await serve()
    stream = await server.connect()
    settings = base64.urlsafe_b64encode(struct.pack(">HI", 2, 77)).decode()  # ENABLE_PUSH is 0 or 1
    await stream.send_all(upgrade(settings))
    with trio.fail_after(10):
        while await stream.receive_some():
            pass
    assert await is_alive(server)


async def test_an_idle_connection_holds_nothing_that_it_has_received(serve: Serve) -> None:
    """Not even what came together with the preface, by which it was known to be HTTP/2."""
    client = await connect(await serve())
    marker = secrets.token_hex().encode()
    await client.answer(await client.start("POST", INFER, b'{"inputs":[],"id":"%b"}' % marker))
    await trio.testing.wait_all_tasks_blocked()
    gc.collect()
    # By their types: some libraries' objects warn when they are asked for their class.
    found = {id(each): each for known in gc.get_objects() for each in gc.get_referents(known)}
    kept = [each for each in found.values() if type(each) in (bytes, bytearray) and len(each) > len(marker)]
    assert not [each for each in kept if marker in each]
