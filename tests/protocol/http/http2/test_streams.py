"""Requests over HTTP/2 that need no task, what makes one need a task after all, and how a connection ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import h2.errors
import h2.events
import h2.settings
import hyperframe.frame as frames
import pytest
import trio
import trio.testing

from protocol.access.control import AccessControl
from protocol.datatypes import DataType
from protocol.http.direct_infer import DirectInference
from protocol.http2.h2_connection import HIGHEST_STREAM_ID
from protocol.limits.request_memory import STREAM_MEMORY, RequestMemory
from protocol.log.access_log import AccessLog, AccessMode, AccessPolicy
from protocol.messages import InferenceResponse, Tensor
from tests.protocol.access.changing_keys import ChangingKeys
from tests.protocol.http.conftest import Serve, only_fast_path
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.http2_client import Http2Client
from tests.protocol.http.test_direct_infer import BINARY, TENSOR, endings
from tests.protocol.http.test_http2 import GATE, INFER, LOOPBACK, WAIT, connect, limited

LIVE = "/v2/health/live"


def sized(body: bytes, *extra: tuple[str, str]) -> list[tuple[str, str]]:
    return [("content-length", str(len(body))), *extra]


def binary(data: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    body = BINARY + data
    return body, sized(body, ("inference-header-content-length", str(len(BINARY))))


async def test_a_request_again_and_again(serve: Serve) -> None:
    """In JSON and in binary, one after the other and all at once; each has the answer to what it asked."""
    core = FakeCore()
    client = await connect(await serve(core))
    ids = []
    for number in range(20):
        body, headers = binary(bytes([number]) * 16)
        ids.append(client.send("POST", INFER, body, headers))
    await client.flush()
    for number, stream_id in reversed([*enumerate(ids)]):
        status, answer = await client.answer(stream_id)
        assert (status, answer[-16:]) == (200, bytes([number]) * 16)
    body = b'{"id":"a",' + TENSOR[1:]
    answer = json.loads((await client.answer(await client.start("POST", INFER, body, sized(body))))[1])
    assert (answer["id"], answer["outputs"][0]["data"]) == ("a", [1, 2, 3, 4])
    assert endings(core) == ["answered"] * 21


@pytest.mark.parametrize("pieces", [[len(TENSOR)], [10], [1, 1, 1], [0]])
async def test_a_body_in_pieces(serve: Serve, pieces: Sequence[int]) -> None:
    """Many clients send headers and body one after the other."""
    core = FakeCore()
    server = await serve(core)
    client = await connect(server)
    stream_id = await client.start("POST", INFER, None, sized(TENSOR))
    rest = TENSOR
    for size in pieces:
        client.h2.send_data(stream_id, rest[:size])
        rest = rest[size:]
        await client.flush()
        await trio.testing.wait_all_tasks_blocked(0.01)
    client.h2.send_data(stream_id, rest, end_stream=True)
    await client.flush()
    assert (await client.answer(stream_id))[0] == 200
    assert endings(core) == ["answered"]
    assert server.services.memory.held == 0


async def test_trailers_end_a_body(serve: Serve) -> None:
    client = await connect(await serve())
    stream_id = await client.start("POST", INFER, None, sized(TENSOR))
    client.h2.send_data(stream_id, TENSOR)
    client.h2.send_headers(stream_id, [("x-checksum", "1")], end_stream=True)
    await client.flush()
    assert (await client.answer(stream_id))[0] == 200


@only_fast_path
async def test_a_defect_behind_the_submission_leaves_nothing_in_flight(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client gets 500, and the request ends when its model answers: the server's end would wait for it."""
    begin = DirectInference.begin

    def begin_and_raise(*arguments: Any) -> None:
        begin(*arguments)
        raise ValueError("a defect")

    core = FakeCore()
    server = await serve(core)
    client = await connect(server)
    with monkeypatch.context() as patch:
        patch.setattr(DirectInference, "begin", begin_and_raise)
        assert (await client.answer(await client.start("POST", INFER, TENSOR, sized(TENSOR))))[0] == 500
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert endings(core) == ["answered"]
    assert server.services.memory.held == 0
    assert (await client.answer(await client.start("POST", INFER, TENSOR, sized(TENSOR))))[0] == 200


async def test_without_a_length_it_takes_a_task(serve: Serve) -> None:
    core = FakeCore()
    client = await connect(await serve(core))
    assert (await client.answer(await client.start("POST", INFER, TENSOR)))[0] == 200
    assert endings(core) == ["answered"]


@pytest.mark.parametrize("length", [len(TENSOR) - 1, len(TENSOR) + 1, 0])
@pytest.mark.parametrize("path", [INFER, LIVE])
async def test_a_length_that_is_not_the_bodys(serve: Serve, length: int, path: str) -> None:
    """Only its stream is reset; nothing of it is asked of the model."""
    core = FakeCore()
    server = await serve(core)
    stream = await server.connect()
    client = Http2Client(stream)
    await client.flush()
    head = client.h2.encoder.encode(client.headers("POST", path, [("content-length", str(length))]))
    await stream.send_all(frames.HeadersFrame(1, head, flags=["END_HEADERS"]).serialize())
    if path == INFER:
        await trio.testing.wait_all_tasks_blocked(0.01)
        await stream.send_all(frames.DataFrame(1, TENSOR, flags=["END_STREAM"]).serialize())
        assert (await client.raw_frame(frames.RstStreamFrame)).error_code == h2.errors.ErrorCodes.PROTOCOL_ERROR
    else:
        await stream.send_all(frames.DataFrame(1, TENSOR, flags=["END_STREAM"]).serialize())
    assert core.requests == []
    assert (await (await connect(server)).get(LIVE))[0] == 200
    assert server.services.memory.held == 0


@pytest.mark.parametrize("length", ["0" * 5000, "9" * 21, "-1", "1 1", "٣"])
async def test_a_length_that_is_none(serve: Serve, length: str) -> None:
    """Refused or reset, and only it."""
    server = await serve()
    client = await connect(server)
    await client.flush()
    headers = [(n.encode(), v.encode()) for n, v in client.headers("POST", INFER, [("content-length", length)])]
    block = client.h2.encoder.encode(headers)
    await client.stream.send_all(frames.HeadersFrame(1, block, flags=["END_HEADERS", "END_STREAM"]).serialize())
    found = await client.raw_frame(frames.Frame)
    while found.stream_id != 1:
        found = await client.raw_frame(frames.Frame)
    assert isinstance(found, frames.HeadersFrame | frames.RstStreamFrame)
    assert (await (await connect(server)).get(LIVE))[0] == 200


async def test_a_revoked_key_is_refused_on_an_open_connection(serve: Serve) -> None:
    """Nothing is remembered of what a header block was allowed."""
    keys = ChangingKeys('[keys.bob]\nkey = "0123456789abcdef"\nallow = ["inference"]')
    core = FakeCore()
    client = await connect(await serve(core, services=make_services(core, access=AccessControl(keys=keys))))
    headers = sized(TENSOR, ("authorization", "Bearer 0123456789abcdef"))
    for _ in range(3):
        assert (await client.answer(await client.start("POST", INFER, TENSOR, headers)))[0] == 200
    keys.change('[keys.eve]\nkey = "fedcba9876543210"\nallow = ["inference"]')
    assert (await client.answer(await client.start("POST", INFER, TENSOR, headers)))[0] == 401
    assert endings(core) == ["answered"] * 3


async def test_a_client_that_waits_for_100_continue(serve: Serve) -> None:
    client = await connect(await serve())
    stream_id = await client.start("POST", INFER, None, sized(TENSOR, ("expect", "100-continue")))
    told = await client.wait_for(h2.events.InformationalResponseReceived, stream_id)
    assert dict(told.headers)[b":status"] == b"100"
    client.h2.send_data(stream_id, TENSOR, end_stream=True)
    await client.flush()
    assert (await client.answer(stream_id))[0] == 200


async def test_a_reset_gives_the_request_up(serve: Serve) -> None:
    core = FakeCore()
    server = await serve(core)
    client = await connect(server)
    stream_id = await client.start("POST", WAIT, TENSOR, sized(TENSOR))
    half = await client.start("POST", INFER, None, sized(TENSOR))
    client.h2.send_data(half, TENSOR[:10])
    await client.flush()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert server.services.memory.held == 2 * STREAM_MEMORY + len(TENSOR) + 10
    client.h2.reset_stream(stream_id)
    client.h2.reset_stream(half)
    assert (await client.get(LIVE))[0] == 200
    assert endings(core) == ["given up"]
    assert server.services.memory.held == 0


@pytest.mark.parametrize("headers", [(), sized(TENSOR)], ids=["with a task", "without"])
async def test_streams_without_bodies_share_the_memory_too(serve: Serve, headers: Sequence[tuple[str, str]]) -> None:
    """Each costs its client some bytes, and the server some kilobytes."""
    core = FakeCore()
    services = replace(make_services(core), memory=RequestMemory(10 * STREAM_MEMORY))
    server = await serve(core, services=services)
    client = await connect(server)
    opened = [client.send("POST", INFER, None, headers) for _ in range(10)]
    await client.flush()
    refused = await client.start("POST", INFER, None, headers)
    status, body = await client.answer(refused)
    assert (status, json.loads(body)["error"].partition(" bytes")[0]) == (503, "the requests in flight hold the 81920")
    assert services.limits.counts() == {("http", "max_request_memory"): 1}
    for stream_id in opened:
        client.h2.reset_stream(stream_id)
    await client.flush()
    await trio.testing.wait_all_tasks_blocked(0.01)
    status, _ = await client.answer(await client.start("POST", INFER, TENSOR, sized(TENSOR)))
    assert (status, services.memory.held) == (200, 0)


async def test_a_client_that_leaves_gives_all_up(serve: Serve) -> None:
    core = FakeCore()
    server = await serve(core)
    client = await connect(server)
    await client.start("POST", WAIT, TENSOR, sized(TENSOR))
    half = await client.start("POST", INFER, None, sized(TENSOR))
    client.h2.send_data(half, TENSOR[:10])
    await client.flush()
    await trio.testing.wait_all_tasks_blocked(0.01)
    await client.stream.aclose()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert server.services.memory.held == 0
    assert endings(core) == ["given up"]


@pytest.mark.slow
async def test_a_body_that_stops_coming_is_answered(serve: Serve) -> None:
    """A task gives it its time."""
    server = await serve(settings=replace(LOOPBACK, body_timeout=0.2, linger=0.1))
    client = await connect(server)
    stream_id = await client.start("POST", INFER, None, sized(TENSOR))
    client.h2.send_data(stream_id, TENSOR[:10])
    await client.flush()
    status, body = await client.answer(stream_id)
    assert status == 408
    assert json.loads(body)["error"].startswith("the request body is not complete: 10 bytes came")
    assert (await client.get(LIVE))[0] == 200


async def test_no_memory_for_a_body(serve: Serve) -> None:
    core = FakeCore()
    services = replace(make_services(core), memory=RequestMemory(STREAM_MEMORY + 20))
    client = await connect(await serve(core, services=services))
    stream_id = await client.start("POST", INFER, None, sized(TENSOR))
    client.h2.send_data(stream_id, TENSOR[:30])
    await client.flush()
    assert (await client.answer(stream_id))[0] == 503
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert services.memory.held == STREAM_MEMORY, "the body's end is waited for"
    client.h2.reset_stream(stream_id)
    await client.flush()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert services.memory.held == 0


async def test_the_only_request_of_a_connection_may_ask_for_health_whatever_the_others_hold(serve: Serve) -> None:
    core = FakeCore()
    services = replace(make_services(core), memory=RequestMemory(STREAM_MEMORY))
    server = await serve(core, services=services)
    one, other = await connect(server), await connect(server)
    await one.start("POST", INFER, None, sized(TENSOR))
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert services.memory.left == 0
    assert (await other.get(LIVE))[0] == 200
    assert (await one.get(LIVE))[0] == 503


async def test_an_answer_that_waits_for_its_window(serve: Serve) -> None:
    """It goes on in a task; the header blocks of all others stay right."""
    core = FakeCore()
    client = await connect(await serve(core))
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 3})
    body, headers = binary(bytes(16))
    stream_id = await client.start("POST", INFER, body, headers)
    await client.wait_for(h2.events.ResponseReceived, stream_id)
    assert (await client.get("/v2/health/ready"))[0] == 200
    client.h2.increment_flow_control_window(1000, stream_id)
    await client.flush()
    data = b""
    while b"\0" * 16 not in data:
        data += (await client.wait_for(h2.events.DataReceived, stream_id)).data
    await client.wait_for(h2.events.StreamEnded, stream_id)


# The end.


async def send_request(client: Http2Client, stream_id: int) -> None:
    """Past h2, which sends nothing more after a GOAWAY."""
    head = client.h2.encoder.encode(client.headers("GET", LIVE))
    await client.stream.send_all(frames.HeadersFrame(stream_id, head, flags=["END_HEADERS", "END_STREAM"]).serialize())


@pytest.mark.slow
async def test_no_request_is_lost_when_the_server_stops(serve: Serve) -> None:
    """Those that come before the client has heard of the end are answered, and told which was the last."""
    core = FakeCore()
    server = await serve(core)
    client = await connect(server)
    await client.start("POST", GATE, TENSOR, sized(TENSOR))
    await trio.testing.wait_all_tasks_blocked(0.01)
    server.stop.set()
    goodbye = await client.raw_frame(frames.GoAwayFrame)  # after a while, since a request is under way
    assert goodbye.last_stream_id == HIGHEST_STREAM_ID
    await send_request(client, 3)
    answer = await client.raw_frame(frames.HeadersFrame)
    assert answer.stream_id == 3
    await client.stream.send_all(frames.PingFrame(0, b"retiring", flags=["ACK"]).serialize())
    goodbye = await client.raw_frame(frames.GoAwayFrame)
    assert goodbye.last_stream_id == 3
    await send_request(client, 5)
    refused = await client.raw_frame(frames.RstStreamFrame)
    assert (refused.stream_id, refused.error_code) == (5, h2.errors.ErrorCodes.REFUSED_STREAM)
    core.gate.set()
    assert (await client.raw_frame(frames.DataFrame)).stream_id == 1
    with trio.fail_after(10):
        await client.stream.aclose()
        await server.ended.wait()


async def test_the_end_is_said_behind_the_last_response(serve: Serve) -> None:
    """A client that gives up on a GOAWAY whatever is in flight has nothing in flight then."""
    core = FakeCore()
    server = await serve(core)
    client = await connect(server)
    await client.start("POST", GATE, TENSOR, sized(TENSOR))
    await trio.testing.wait_all_tasks_blocked(0.01)
    server.stop.set()
    await trio.testing.wait_all_tasks_blocked(0.01)
    core.gate.set()
    kinds: list[frames.Frame] = []
    while not kinds or not isinstance(kinds[-1], frames.GoAwayFrame):
        kinds.append(await client.raw_frame(frames.Frame))
    found = [each for each in kinds if not isinstance(each, frames.SettingsFrame | frames.WindowUpdateFrame)]
    assert [type(each) for each in found] == [
        frames.HeadersFrame,
        frames.DataFrame,
        frames.PingFrame,
        frames.GoAwayFrame,
    ]


async def test_an_idle_connection_ends(serve: Serve) -> None:
    server = await serve(settings=limited(idle_timeout=1))
    client = await connect(server)
    assert (await client.get(LIVE))[0] == 200
    with trio.fail_after(10):
        await client.read_to_end()
    assert server.services.limits.counts() == {("http", "idle_timeout"): 1}


def zeros(count: int) -> InferenceResponse:
    return InferenceResponse("echo", 1, [Tensor("OUT_IN", DataType.UINT8, (count,), bytes(count))])


@pytest.mark.parametrize("mode", [AccessMode.ALL, AccessMode.ERRORS])
async def test_the_access_log_says_what_became_of_an_answer_that_waited(serve: Serve, mode: AccessMode) -> None:
    """For the first there is room, for the second there is none, and the third one's client does not want it."""
    lines: list[dict[str, Any]] = []
    core = FakeCore(respond=lambda request: zeros(2000 if request.id == "third" else 25_000))
    log = AccessLog(AccessPolicy(mode), lambda line: lines.append(json.loads(line)))
    services = replace(make_services(core), memory=RequestMemory(120_000), access_log=log)
    client = await connect(await serve(core, services=services))
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    ids = []
    for name in ("first", "second", "third"):
        body = b'{"id":"%b",' % name.encode() + TENSOR[1:]
        ids.append(await client.start("POST", INFER, body, sized(body)))
        await trio.testing.wait_all_tasks_blocked(0.01)
    client.h2.reset_stream(ids[2])
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    await client.flush()
    assert [(await client.answer(stream_id))[0] for stream_id in ids[:2]] == [200, 503]
    assert await client.get(LIVE) == (200, b'{"live":true}')
    found = {line["request_id"]: (line["status"], line["cancelled"], "error" in line) for line in lines}
    expected = {"first": (200, False, False), "second": (503, False, True), "third": (499, True, False)}
    if mode is AccessMode.ERRORS:
        del expected["first"]
    assert found == expected
    assert len(lines) == len(expected)
    assert all(0 <= line["duration_us"] < 60_000_000 for line in lines)
    assert services.memory.held == 0
