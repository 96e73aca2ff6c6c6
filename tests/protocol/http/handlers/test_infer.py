"""Inference through the application: codec, core and compression together."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest

from protocol.datatypes import DataType
from protocol.errors import DeadlineExceeded, Internal, ServerError, Unavailable, Unsupported
from protocol.http.app import HttpApp
from protocol.http.handlers import infer as infer_handler
from protocol.http.settings import HttpSettings
from tests.protocol.http.asgi import Answer, Exchange, call
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_request, make_services
from tests.protocol.http.wire import infer_body, read_outputs

INFER = "/v2/models/echo/infer"
HEADER = "inference-header-content-length"


def outputs(answer: Answer) -> dict[str, object]:
    assert answer.status == 200, answer.body
    size = int(answer.headers.get(HEADER, len(answer.body)))
    found = read_outputs(answer.body[:size], answer.body[size:])
    return {name: array.tolist() for name, array in found.items()}


async def infer(core: FakeCore, body: bytes, path: str = INFER, **headers: str) -> Answer:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await call(HttpApp(make_services(core), HttpSettings()), "POST", path, body, names)


async def test_json_both_ways() -> None:
    core = FakeCore()
    body, _ = infer_body([("A", DataType.INT32, np.array([[1, 2]]), False)], id="7")
    answer = await infer(core, body)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["id"] == "7"
    assert outputs(answer) == {"OUT_A": [[1, 2]]}
    assert (core.requests[0].model_name, core.requests[0].model_version) == ("echo", -1)


async def test_binary_both_ways() -> None:
    body, size = infer_body(
        [("A", DataType.FP32, np.arange(16, dtype=np.float32).reshape(1, 16), True)],
        outputs=[{"name": "OUT_A", "parameters": {"binary_data": True}}],
    )
    answer = await infer(FakeCore(), body, inference_header_content_length=str(size))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert len(answer.body) - int(answer.headers[HEADER]) == 64
    assert outputs(answer) == {"OUT_A": [list(range(16))]}


async def test_large_tensors_are_views_all_the_way() -> None:
    """The echoed output is the request's own memory."""
    array = np.arange(100_000, dtype=np.float32)
    body, size = infer_body([("A", DataType.FP32, array, True)], parameters={"binary_data_output": True})
    request = replace(
        make_request(path_parameters={"model_name": "echo"}, body=body), headers={HEADER.encode(): b"%d" % size}
    )
    reply = await infer_handler.infer(request)
    (tail,) = reply.tail
    assert np.shares_memory(np.frombuffer(tail, np.uint8), np.frombuffer(body, np.uint8))
    assert reply.length == len(reply.content) == len(reply.body) + array.nbytes
    assert reply.content == bytes(reply.body) + array.tobytes()


async def test_a_version_in_the_path() -> None:
    core = FakeCore()
    body, _ = infer_body([])
    assert (await infer(core, body, "/v2/models/echo/versions/1/infer")).status == 200
    assert core.requests[0].model_version == 1
    answer = await infer(core, body, "/v2/models/echo/versions/9999999999999999999/infer")
    assert answer.status == 400
    assert "failed to get model version" in answer.error


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_compressed_bodies(coding: str, compress: object) -> None:
    """The header length counts bytes of the decompressed body, both ways."""
    assert callable(compress)
    array = np.zeros(4000, np.float32)
    body, size = infer_body([("A", DataType.FP32, array, True)], parameters={"binary_data_output": True})
    answer = await infer(
        FakeCore(),
        compress(body),
        content_encoding=coding,
        inference_header_content_length=str(size),
        accept_encoding=f"identity;q=0.5, {coding}",
    )
    assert answer.headers["content-encoding"] == coding
    assert len(answer.body) < 1000
    answer.body = gzip.decompress(answer.body) if coding == "gzip" else zlib.decompress(answer.body)
    assert outputs(answer) == {"OUT_A": array.tolist()}


async def test_a_small_response_is_not_compressed() -> None:
    answer = await infer(FakeCore(), infer_body([])[0], accept_encoding="gzip")
    assert "content-encoding" not in answer.headers
    assert answer.json["outputs"] == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ServerError("text"), 400),
        (Internal("text"), 500),
        (Unavailable("text"), 503),
        (DeadlineExceeded("text"), 504),
        (Unsupported("text"), 501),
    ],
)
async def test_errors_of_the_core(error: ServerError, status: int) -> None:
    answer = await infer(FakeCore(failure=error), infer_body([])[0], "/v2/models/broken/infer")
    assert (answer.status, answer.error) == (status, "text")
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b"{", {}, 400, "failed to parse the request JSON buffer"),
        (b"{}", {}, 400, "non-existing object member 'inputs'"),
        (b"{}", {"inference_header_content_length": "3"}, 400, "should be in range (0, 2), got: 3"),
        (b"{}", {"inference_header_content_length": "-2"}, 400, "should be in range (0, 2), got: -2"),
        (b"{}", {"content_encoding": "br"}, 501, "Unsupported compression type"),
        (b"{}", {"content_encoding": "gzip"}, 400, "failed to decompress the request body as gzip"),
    ],
)
async def test_bad_requests(body: bytes, headers: dict[str, str], status: int, text: str) -> None:
    answer = await infer(FakeCore(), body, **headers)
    assert answer.status == status
    assert text in answer.error
    assert ("accept-encoding" in answer.headers) is (text == "Unsupported compression type")


async def test_unknown_model() -> None:
    answer = await infer(FakeCore(), json.dumps({"inputs": []}).encode(), "/v2/models/none/infer")
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'none' is not found")


async def test_decoupled_models_are_refused() -> None:
    answer = await infer(FakeCore(), b"{", "/v2/models/many/infer")
    assert (answer.status, answer.error) == (
        501,
        "HTTP end point doesn't support models with decoupled transaction policy",
    )


async def forwarded(pattern: str, headers: list[tuple[str, str]], parameters: str = "{}") -> tuple[Answer, FakeCore]:
    core = FakeCore()
    app = HttpApp(make_services(core, forwarding=pattern), HttpSettings())
    body = b'{"inputs":[],"parameters":%b}' % parameters.encode()
    exchange = Exchange("POST", INFER, body, {"content-length": str(len(body))}, twice=headers)
    return await exchange.run(app), core


async def test_headers_become_parameters() -> None:
    """Those that match, over those of the body; the values of one name are joined."""
    headers = [("x-user", "größe"), ("x-tag", "a"), ("x-tag", "b"), ("other", "c")]
    _, core = await forwarded("^x-", headers, '{"x-user":"forged","mine":1}')
    assert core.requests[0].parameters == {"x-user": "größe", "x-tag": "a, b", "mine": 1}
    _, core = await forwarded("^x-", [("X-User", "real")], '{"x-user":"forged"}')
    assert core.requests[0].parameters == {"X-User": "real"}
    _, core = await forwarded("", headers)
    assert core.requests[0].parameters == {}


@pytest.mark.parametrize("name", ["priority", "sequence_id", "triton_x", "binary_data_output"])
async def test_reserved_headers(name: str) -> None:
    answer, core = await forwarded(".*", [(name, "1")])
    assert answer.status == 400
    assert answer.error == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    assert core.requests == []


@pytest.mark.slow
async def test_much_json_both_ways() -> None:
    """So much that it is read and written beside the loop; mistakes in it are answered as all others."""
    array = np.arange(400_000, dtype=np.float64)
    body, _ = infer_body([("A", DataType.FP64, array, False)])
    answer = await infer(FakeCore(), body)
    assert outputs(answer) == {"OUT_A": array.tolist()}
    answer = await infer(FakeCore(), body[:-1])
    assert answer.status == 400
    assert answer.error.startswith("failed to parse the request JSON buffer: ")
