"""The answers to a request by the fast path and by a task, side by side: the same bytes."""

from __future__ import annotations

import gzip
import re

import pytest

from protocol.datatypes import DataType
from protocol.errors import Cancelled, DeadlineExceeded, Internal, InvalidArgument, Overloaded, ServerError, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from tests.protocol.http.conftest import Serve, Served, only_fast_path
from tests.protocol.http.fake_core import FakeCore, echo
from tests.protocol.http.http1.test_connection import EMPTY, INFER, connect, head, sized
from tests.protocol.http.http2.test_streams import sized as http2_sized
from tests.protocol.http.test_direct_infer import BINARY, TENSOR, binary
from tests.protocol.http.test_http2 import connect as connect_http2

LAST = head("/v2/health/live", "Connection: close", method="GET")
DATE = re.compile(rb"date: [^\r]*\r\n", re.IGNORECASE)
MADE_ID = re.compile(rb"[0-9a-f]{32}")

REQUESTS = {
    "json": sized(INFER, TENSOR),
    "id": sized(INFER, b'{"id":"a",' + TENSOR[1:]),
    "binary": binary(INFER),
    "output": sized(INFER, TENSOR[:-1] + b',"outputs":[{"name":"OUT_IN"}]}'),
    "no such output": sized(INFER, TENSOR[:-1] + b',"outputs":[{"name":"NONE"}]}'),
    "accepts gzip": binary(INFER, bytes(16), "Accept-Encoding: gzip"),
    "a version": sized("/v2/models/echo/versions/1/infer", TENSOR),
    "no such version": sized("/v2/models/echo/versions/7/infer", TENSOR),
    "no version": sized("/v2/models/echo/versions/x/infer", TENSOR),
    "no such model": sized("/v2/models/nobody/infer", TENSOR),
    "no such model, and no request": sized("/v2/models/nobody/infer", b"{"),
    "decoupled": sized("/v2/models/many/infer", TENSOR),
    "decoupled, and no request": sized("/v2/models/many/infer", b"{"),
    "no json": sized(INFER, b"{"),
    "nothing": sized(INFER, b""),
    "empty": sized(INFER, EMPTY),
    "wrong shape": sized(INFER, TENSOR.replace(b"[1,4]", b"[1,5]")),
    "wrong datatype": sized(INFER, TENSOR.replace(b"FP32", b"FP31")),
    "no such region": sized(
        INFER,
        b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,4],"parameters":'
        b'{"shared_memory_region":"r","shared_memory_byte_size":16}}]}',
    ),
    "wrong length of the head": sized(INFER, BINARY, "Inference-Header-Content-Length: 9999"),
    "short tensor": binary(INFER, bytes(15)),
    "compressed": sized(INFER, gzip.compress(TENSOR), "Content-Encoding: gzip"),
    "http/1.0": head(INFER, f"Content-Length: {len(TENSOR)}", "Connection: keep-alive", version="1.0") + TENSOR,
}
FAILURES = [
    Cancelled("it was cancelled"),
    DeadlineExceeded("late"),
    Internal("broken"),
    InvalidArgument("wrong"),
    Overloaded("too much"),
    ServerError("whatever"),
    Unavailable("down"),
]


async def bytes_of(server: Served, request: bytes) -> bytes:
    """All that comes for a request, but for the date and the ids that are made; and for another one behind it."""
    client = await connect(server)
    await client.send(request)
    status, headers, body = await client.response()
    headers.pop("date", None)
    answer = repr((status, list(headers.items()), body)).encode()
    await client.send(LAST)
    while part := bytes(await client.stream.receive_some()):
        answer += part
    return MADE_ID.sub(b"ID", DATE.sub(b"", answer))


@only_fast_path
@pytest.mark.parametrize("name", REQUESTS)
async def test_requests(serve: Serve, name: str) -> None:
    fast, task = await serve(FakeCore(), has_fast_path=True), await serve(FakeCore(), has_fast_path=False)
    assert await bytes_of(fast, REQUESTS[name]) == await bytes_of(task, REQUESTS[name])


@only_fast_path
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
async def test_errors_of_a_model(serve: Serve, error: ServerError) -> None:
    servers = [await serve(FakeCore(failure=error), has_fast_path=is_fast) for is_fast in (True, False)]
    request = sized("/v2/models/broken/infer", TENSOR)
    fast, task = [await bytes_of(server, request) for server in servers]
    assert fast == task
    assert error.message.encode() in fast


def named(request: InferenceRequest) -> InferenceResponse:
    """With parameters, and texts that JSON has to escape."""
    response = echo(request)
    response.parameters = {"a": 1, "b": '"', "c": True, "d": 0.5}
    response.outputs.append(Tensor("TEXT", DataType.BYTES, (1,), b"\x03\x00\x00\x00\xc3\xb6\n"))
    return response


def unencodable(request: InferenceRequest) -> InferenceResponse:
    return InferenceResponse("echo", 1, [Tensor("TEXT", DataType.BYTES, (1,), b"\x01\x00\x00\x00\xff")])


def large(request: InferenceRequest) -> InferenceResponse:
    return InferenceResponse("echo", 1, [Tensor("OUT", DataType.UINT8, (1_200_000,), bytes(1_200_000))])


@only_fast_path
@pytest.mark.parametrize("respond", [named, unencodable, large])
@pytest.mark.parametrize("request_", [sized(INFER, TENSOR), binary(INFER, bytes(16), "Accept-Encoding: gzip")])
async def test_responses(serve: Serve, respond: object, request_: bytes) -> None:
    cores = [FakeCore(respond=respond) for _ in range(2)]  # type: ignore[arg-type]  # one of the functions above
    servers = [await serve(core, has_fast_path=is_fast) for core, is_fast in zip(cores, (True, False), strict=True)]
    fast, task = [await bytes_of(server, request_) for server in servers]
    assert fast == task


@only_fast_path
@pytest.mark.parametrize("model", ["echo", "many", "nobody", "broken"])
async def test_http2(serve: Serve, model: str) -> None:
    answers = []
    for is_fast in (True, False):
        client = await connect_http2(await serve(FakeCore(), has_fast_path=is_fast))
        request = await client.start("POST", f"/v2/models/{model}/infer", TENSOR, http2_sized(TENSOR))
        status, body = await client.answer(request)
        answers.append((status, MADE_ID.sub(b"ID", body)))
    assert answers[0] == answers[1]
