"""Inference requests over HTTP/1 that need no task, and what makes one need a task after all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
import trio.testing

from protocol.access.control import AccessControl
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.http.server import HttpSettings
from protocol.http.settings import ConnectionLimits
from protocol.limits.request_memory import RequestMemory
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from tests.protocol.access.changing_keys import ChangingKeys
from tests.protocol.http.conftest import Serve, only_fast_path
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.http1.test_connection import EMPTY, INFER, LOOPBACK, Client, connect, head, sized

GATE = "/v2/models/gate/infer"
TENSOR = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
BINARY = (
    b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}],'
    b'"parameters":{"binary_data_output":true}}'
)


def binary(path: str, data: bytes = bytes(16), *headers: str) -> bytes:
    return sized(path, BINARY + data, f"Inference-Header-Content-Length: {len(BINARY)}", *headers)


def endings(core: FakeCore) -> list[str]:
    return [each.ending for each in core.submitted]


async def test_a_request_again_and_again(serve: Serve) -> None:
    """In JSON and in binary, with ids, of one connection and of several; each has the answer to what it asked."""
    core = FakeCore()
    server = await serve(core)
    clients = [await connect(server) for _ in range(3)]
    for number in range(4):
        for client in clients:
            await client.send(binary(INFER, bytes([number]) * 16))
        for client in clients:
            status, headers, body = await client.response()
            assert (status, body[-16:]) == (200, bytes([number]) * 16)
            assert headers["inference-header-content-length"] == str(len(body) - 16)
    await clients[0].send(sized(INFER, b'{"id":"a",' + TENSOR[1:]))
    answer = json.loads((await clients[0].response())[2])
    assert (answer["id"], answer["outputs"][0]["data"]) == ("a", [1, 2, 3, 4])
    assert endings(core) == ["answered"] * 13


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head("/v2/health/live", method="GET"), 200),
        (sized("/v2/models/echo/versions/99999999999999999999/infer", EMPTY), 400),
        (sized(INFER, b"{"), 400),
        (sized(INFER, EMPTY, "Inference-Header-Content-Length: 99"), 400),
        (sized(INFER, gzip.compress(EMPTY), "Content-Encoding: gzip"), 200),
        (sized(INFER, b'{"parameters":{"x":"' + b"y" * 100_000 + b'"},"inputs":[]}'), 200),  # more than one read
        (sized("/v2/models/echo/generate", b"{}"), 200),
    ],
)
async def test_others_take_a_task_and_leave_the_connection_as_it_was(serve: Serve, sent: bytes, status: int) -> None:
    core = FakeCore()
    core.respond = None
    client = await connect(await serve(core))
    for _ in range(2):
        await client.send(binary(INFER))
        assert (await client.response())[0] == 200
        await client.send(sent)
        assert (await client.response())[0] == status
    assert endings(core) == ["answered"] * (4 if sent.startswith(f"POST {INFER} ".encode()) and status == 200 else 2)


@only_fast_path
@pytest.mark.parametrize(("model", "status"), [("many", 501), ("nobody", 404)])
async def test_a_refusal_takes_no_task(serve: Serve, model: str, status: int) -> None:
    core = FakeCore()
    client = await connect(await serve(core))
    for _ in range(2):
        await client.send(sized(f"/v2/models/{model}/infer", EMPTY))
        assert (await client.response())[0] == status
        await client.send(binary(INFER))
        assert (await client.response())[0] == 200
    assert endings(core) == ["answered"] * 4


async def test_a_request_in_pieces(serve: Serve) -> None:
    """Many clients send the head and the body one after the other."""
    core = FakeCore()
    client = await connect(await serve(core))
    request = binary(INFER, bytes(range(16)))
    body = request.index(b"\r\n\r\n") + 4
    for cuts in ((body,), (body + 1, len(request) - 4), (body, len(request) - 1)):
        for start, end in zip((0, *cuts), (*cuts, len(request)), strict=True):
            await client.send(request[start:end])
            await trio.testing.wait_all_tasks_blocked(0.01)
        status, _, answer = await client.response()
        assert (status, answer[-16:]) == (200, bytes(range(16)))
    assert endings(core) == ["answered"] * 3


async def test_a_request_whose_rest_does_not_come(serve: Serve) -> None:
    core = FakeCore()
    server = await serve(core, replace(LOOPBACK, body_timeout=0.05))
    client = await connect(server)
    await client.send(binary(INFER)[:-4])
    assert (await client.response())[0] == 408
    assert await client.is_at_end()
    client = await connect(server)
    await client.send(binary(INFER)[:-4])
    await client.stream.send_eof()
    assert await client.is_at_end()
    assert not core.submitted
    assert server.services.memory.held == 0


async def test_a_request_whose_rest_comes_while_the_server_stops(serve: Serve) -> None:
    core = FakeCore()
    server = await serve(core)
    client = await connect(server)
    await client.send(binary(INFER)[:-4])
    await trio.testing.wait_all_tasks_blocked(0.01)
    server.stop.set()
    await trio.testing.wait_all_tasks_blocked(0.01)
    await client.send(bytes(4))
    status, headers, _ = await client.response()
    assert (status, headers["connection"]) == (200, "close")
    assert await client.is_at_end()


async def test_what_comes_behind_a_request_waits_for_its_answer(serve: Serve) -> None:
    core = FakeCore()
    client = await connect(await serve(core))
    await client.send(sized(GATE, b'{"id":"first","inputs":[]}'))
    await core.started.wait()
    await client.send(sized(INFER, b'{"id":"second","inputs":[]}') + sized(INFER, b'{"id":"third","inputs":[]}'))
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert [each.id for each in core.requests] == ["first"]
    core.gate.set()
    assert [json.loads((await client.response())[2])["id"] for _ in range(3)] == ["first", "second", "third"]


async def test_a_client_that_only_closes_its_end_is_answered(serve: Serve) -> None:
    core = FakeCore()
    client = await connect(await serve(core))
    await client.send(sized(GATE, EMPTY))
    await client.stream.send_eof()
    await core.started.wait()
    core.gate.set()
    assert (await client.response())[0] == 200
    assert await client.is_at_end()


async def test_a_client_that_leaves_has_its_request_given_up(serve: Serve) -> None:
    core = FakeCore()
    server = await serve(core)
    client = await connect(server)
    await client.send(sized("/v2/models/wait/infer", EMPTY))
    await core.started.wait()
    assert server.services.memory.held == len(EMPTY)
    await client.stream.aclose()
    with trio.fail_after(10):
        await core.cancelled.wait()
    assert endings(core) == ["given up"]
    assert server.services.memory.held == 0


@pytest.mark.slow
async def test_stopping_answers_and_closes(serve: Serve) -> None:
    core = FakeCore()
    server = await serve(core)
    client, idle = await connect(server), await connect(server)
    await client.send(sized(GATE, EMPTY))
    await idle.send(sized(INFER, EMPTY))
    assert (await idle.response())[0] == 200
    await core.started.wait()
    server.stop.set()
    assert await idle.is_at_end()
    core.gate.set()
    status, headers, _ = await client.response()
    assert (status, headers["connection"]) == (200, "close")
    assert await client.is_at_end()
    with trio.fail_after(10):
        await server.ended.wait()


async def test_cancelling_gives_up_what_is_under_way(serve: Serve) -> None:
    core = FakeCore()
    server = await serve(core)
    client = await connect(server)
    await client.send(sized("/v2/models/wait/infer", EMPTY))
    await core.started.wait()
    server.scope.cancel()
    with trio.fail_after(10):
        await server.ended.wait()
    assert endings(core) == ["given up"]
    assert server.services.memory.held == 0


async def test_an_error_of_the_model(serve: Serve) -> None:
    core = FakeCore(failure=InvalidArgument("not with me"))
    client = await connect(await serve(core))
    for _ in range(2):
        await client.send(sized("/v2/models/broken/infer", EMPTY))
        status, headers, body = await client.response()
        named = headers["x-request-id"]
        assert (status, json.loads(body)) == (400, {"error": "not with me", "request_id": named})
    assert endings(core) == ["answered"] * 2


class Answering(FakeCore):
    """Replies everything with one response, by a call."""

    def __init__(self, response: InferenceResponse) -> None:
        super().__init__()
        self._response = response

    async def _answer(self, request: InferenceRequest) -> InferenceResponse:
        await trio.lowlevel.checkpoint()
        return self._response


def response(datatype: DataType, data: bytes) -> InferenceResponse:
    return InferenceResponse("echo", 1, [Tensor("OUT", datatype, (len(data),), data)])


@pytest.mark.slow
async def test_answers_that_take_a_thread(serve: Serve) -> None:
    """A large one in JSON, and one that the client wants compressed."""
    core = Answering(response(DataType.UINT8, bytes(1_200_000)))
    client = await connect(await serve(core))
    for _ in range(2):
        await client.send(sized(INFER, EMPTY))
        status, _, body = await client.response()
        assert (status, len(json.loads(body)["outputs"][0]["data"])) == (200, 1_200_000)
        await client.send(sized(INFER, EMPTY, "Accept-Encoding: gzip"))
        status, headers, body = await client.response()
        assert (status, headers["content-encoding"]) == (200, "gzip")
        assert len(json.loads(gzip.decompress(body))["outputs"][0]["data"]) == 1_200_000
    assert endings(core) == ["answered"] * 4


async def test_an_answer_that_cannot_be_encoded(
    serve: Serve, has_fast_path: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Text that is none is the model's mistake; anything else is a defect, and is logged."""
    client = await connect(await serve(Answering(response(DataType.BYTES, b"\x01\x00\x00\x00\xff"))))
    await client.send(sized(INFER, EMPTY))
    assert (await client.response())[0] in (400, 500)
    broken = InferenceResponse("echo", 1, [Tensor("OUT", DataType.FP32, (1,), None)])  # type: ignore[arg-type]
    client = await connect(await serve(Answering(broken)))
    for _ in range(2):
        await client.send(sized(INFER, EMPTY))
        assert (await client.response())[0] == 500
    assert ("could not be encoded" if has_fast_path else "/infer failed") in caplog.text


@pytest.mark.slow
async def test_a_large_answer_to_a_slow_reader(serve: Serve) -> None:
    """What the kernel does not take at once follows, and then the next request is taken."""
    data = bytes(range(256)) * 80_000
    client = await connect(await serve(Answering(response(DataType.UINT8, data))))
    for _ in range(2):
        await client.send(binary(INFER))
        await trio.testing.wait_all_tasks_blocked(0.05)
        status, _, body = await client.response()
        assert status == 200
        assert body.endswith(data)


async def test_a_deaf_client_is_cut_off(serve: Serve) -> None:
    core = Answering(response(DataType.UINT8, bytes(20_000_000)))
    limits = replace(ConnectionLimits(), send_timeout=0.2)
    server = await serve(core, HttpSettings(host="127.0.0.1", port=0, connections=limits))
    client = await connect(server)
    await client.send(binary(INFER))
    with trio.fail_after(10):
        while not server.services.limits.counts().get(("http", "send_timeout")):  # noqa: ASYNC110 (nobody tells of it)
            await trio.sleep(0.02)
    assert server.services.memory.held == 0


async def test_memory_of_all_requests_is_bounded(serve: Serve) -> None:
    core = FakeCore()
    services = replace(make_services(core), memory=RequestMemory(30))
    server = await serve(core, services=services)
    first, second = await connect(server), await connect(server)
    await first.send(sized(GATE, EMPTY))
    await core.started.wait()
    await second.send(sized(INFER, b'{"inputs":[], "id":"x"}'))
    assert (await second.response())[0] == 503
    core.gate.set()
    assert (await first.response())[0] == 200
    second = await connect(server)  # a refusal before the body is read ends the connection
    await second.send(sized(INFER, b'{"inputs":[], "id":"x"}'))
    assert (await second.response())[0] == 200
    assert services.memory.held == 0


@pytest.mark.parametrize("change", [lambda s: replace(s, max_input_size=10), lambda s: replace(s, max_body_size=10)])
async def test_limits_of_a_body(serve: Serve, change: Callable[[HttpSettings], HttpSettings]) -> None:
    core = FakeCore()
    client = await connect(await serve(core, change(LOOPBACK)))
    await client.send(sized(INFER, EMPTY))
    assert (await client.response())[0] == 413
    assert not core.submitted


async def test_as_many_requests_as_a_connection_may_have(serve: Serve) -> None:
    core = FakeCore()
    limits = replace(ConnectionLimits(), max_requests_per_connection=3)
    client: Client = await connect(await serve(core, replace(LOOPBACK, connections=limits)))
    for number in range(3):
        await client.send(binary(INFER))
        status, headers, _ = await client.response()
        assert (status, headers.get("connection")) == (200, "close" if number == 2 else None)
    assert await client.is_at_end()


KEY = "a-key-of-enough-characters"
KEYS = f'[keys.alice]\nkey = "{KEY}"\nallow = ["inference"]\n'


@pytest.mark.parametrize("path", [INFER, "/v2/models/echo/generate"])
async def test_a_key_that_is_taken_back_is_refused_at_once(serve: Serve, path: str) -> None:
    """Also by a connection whose last request had the same head."""
    core, keys = FakeCore(), ChangingKeys(KEYS)
    server = await serve(core, None, make_services(core, access=AccessControl(keys=keys)))
    request = sized(path, EMPTY if path == INFER else b"{}", f"Authorization: Bearer {KEY}")
    for changed, status in ((KEYS.replace('["inference"]', '["health"]'), 403), (KEYS.replace(KEY, KEY + "2"), 401)):
        client = await connect(server)
        for _ in range(3):
            await client.send(request)
            assert (await client.response())[0] == 200
        keys.change(KEYS + "# the same keys, and another file")
        await client.send(request)
        assert (await client.response())[0] == 200
        keys.change(changed)
        await client.send(request)
        assert (await client.response())[0] == status
        keys.change(KEYS)
    if path == INFER:  # and these needed no task
        assert endings(core) == ["answered"] * 8
