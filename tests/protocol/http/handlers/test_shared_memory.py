"""Shared memory: the calls of the two extensions, and inference on regions of real segments."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import trio

from protocol.core import TensorMetadata
from protocol.datatypes import DataType
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from tests.protocol.http.asgi import Answer, Exchange, call
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services
from tests.protocol.shared_memory.conftest import ClientSegment

SYSTEM = "/v2/systemsharedmemory"
CUDA = "/v2/cudasharedmemory"
INFER = "/v2/models/echo/infer"
HANDLE = {"b64": base64.b64encode(bytes(64)).decode()}
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


def make_app(core: FakeCore | None = None, *, allow: bool = True) -> HttpApp:
    return HttpApp(make_services(core, allow_shared_memory=allow), HttpSettings())


@pytest.fixture
def segment() -> Iterator[ClientSegment]:
    """64 bytes: the FP32 numbers 0 to 15."""
    made = ClientSegment(np.arange(16, dtype=np.float32).tobytes())
    yield made
    made.unlink()


@pytest.fixture
def app() -> Iterator[HttpApp]:
    made = make_app()
    with closing(made.services.shared_memory):
        yield made


async def post(app: HttpApp, path: str, body: Any = b"") -> Answer:
    return await call(app, "POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())


async def register(app: HttpApp, segment: ClientSegment, name: str = "r") -> None:
    answer = await post(app, f"{SYSTEM}/region/{name}/register", {"key": segment.key, "byte_size": 64})
    assert (answer.status, answer.body) == (200, b"")


async def regions(app: HttpApp) -> list[str]:
    return [entry["name"] for entry in (await call(app, "GET", f"{SYSTEM}/status")).json]


async def test_register_status_unregister(app: HttpApp, segment: ClientSegment) -> None:
    body = {"key": segment.key, "offset": 16, "byte_size": 48, "other": 1}
    answer = await post(app, f"{SYSTEM}/region/b%20c/register", body)
    assert (answer.status, answer.body) == (200, b"")
    await register(app, segment, "a")
    a = {"name": "a", "key": segment.key, "offset": 0, "byte_size": 64}
    b = {"name": "b c", "key": segment.key, "offset": 16, "byte_size": 48}
    assert (await call(app, "GET", f"{SYSTEM}/status")).json == [a, b]
    assert (await call(app, "GET", f"{SYSTEM}/region/b%20c/status")).json == [b]
    for _ in range(2):  # an unknown name is no error
        assert (await post(app, f"{SYSTEM}/region/a/unregister")).status == 200
    assert await regions(app) == ["b c"]
    assert (await post(app, f"{SYSTEM}/unregister")).status == 200
    assert await regions(app) == []
    assert (await call(app, "GET", f"{CUDA}/status")).json == []


async def test_errors_of_status(app: HttpApp, segment: ClientSegment) -> None:
    await register(app, segment)
    answer = await call(app, "GET", f"{SYSTEM}/region/x/status")
    assert (answer.status, answer.error) == (404, "Unable to find system shared memory region: 'x'")
    answer = await call(app, "GET", f"{CUDA}/region/x/status")
    assert (answer.status, answer.error) == (404, "Unable to find cuda shared memory region: 'x'")
    answer = await call(app, "GET", f"{CUDA}/region/r/status")
    text = "The region named 'r' is registered as system shared memory, not CUDA shared memory"
    assert (answer.status, answer.error) == (404, text)
    assert (await post(app, f"{CUDA}/region/r/unregister")).status == 200
    assert await regions(app) == ["r"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"byte_size": 8}, "Shared memory register request has no 'key' field"),
        ({}, "Shared memory register request has no 'key' field"),
        ({"key": "/k"}, "Shared memory register request has no 'byte_size' field"),
        ({"key": 5, "byte_size": 8}, "Unable to parse 'key': attempt to access JSON non-string as string, got int"),
        ({"key": None, "byte_size": 8}, "Unable to parse 'key': attempt to access JSON non-string as string, got null"),
        ({"key": "/k", "byte_size": -8}, "Unable to parse 'byte_size': attempt to access JSON non-unsigned-integer"),
        ({"key": "/k", "byte_size": 8, "offset": "0"}, "Unable to parse 'offset': attempt to access JSON non-unsigned"),
        ({"key": "/k_none", "byte_size": 8}, "Unable to open shared memory region: '/k_none'"),
        ({"key": "//", "byte_size": 8}, "cannot register shared memory region 'r' - invalid shm key '//'"),
        ({"key": "/../etc/passwd", "byte_size": 8}, "cannot register shared memory region 'r' - invalid shm key"),
        ({"key": "/a\0b", "byte_size": 8}, "cannot register shared memory region 'r' - invalid shm key"),
        (
            {"key": "/triton_python_backend_shm_region_1", "byte_size": 8},
            "cannot register shared memory region 'r' with key '/triton_python_backend_shm_region_1' as the key "
            "contains the reserved prefix 'triton_python_backend_shm_region_'",
        ),
        ([], "Unable to parse the request JSON: attempt to access JSON non-object as object"),
        (b"", "failed to parse the request JSON buffer: The document is empty at 0"),
        (b"{", "failed to parse the request JSON buffer: "),
    ],
)
async def test_wrong_registrations(app: HttpApp, body: Any, text: str) -> None:
    answer = await post(app, f"{SYSTEM}/region/r/register", body)
    assert answer.status == 400
    assert answer.error.startswith(text)
    assert await regions(app) == []


async def test_registrations_that_do_not_fit(app: HttpApp, segment: ClientSegment) -> None:
    await register(app, segment)
    answer = await post(app, f"{SYSTEM}/region/r/register", {"key": segment.key, "byte_size": 8})
    assert (answer.status, answer.error) == (400, "shared memory region 'r' already in manager")
    for body in ({"byte_size": 65}, {"byte_size": 8, "offset": 60}, {"byte_size": 2**64, "offset": 2**70}):
        answer = await post(app, f"{SYSTEM}/region/s/register", {"key": segment.key, **body})
        assert (answer.status, answer.error) == (400, "failed to register shared memory region 's': invalid args")


@pytest.mark.parametrize("name", ["%00", "a%00b", "x" * 1025])
async def test_names_that_no_region_may_have(app: HttpApp, segment: ClientSegment, name: str) -> None:
    answer = await post(app, f"{SYSTEM}/region/{name}/register", {"key": segment.key, "byte_size": 8})
    assert answer.status == 400
    assert "shared memory region" in answer.error
    assert (await call(app, "GET", f"{SYSTEM}/region/{name}/status")).status == 404
    assert (await post(app, f"{SYSTEM}/region/{name}/unregister")).status == 200


@pytest.mark.parametrize("name", ["..", "%2e%2e%2f..%2fetc", "a%2fb", "%ff"])
async def test_names_are_only_names(app: HttpApp, segment: ClientSegment, name: str) -> None:
    """What would be a path elsewhere leads nowhere: a region's name opens no file."""
    await register(app, segment, name)
    assert len(await regions(app)) == 1
    assert (await post(app, f"{SYSTEM}/region/{name}/unregister")).status == 200
    assert await regions(app) == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            {"raw_handle": HANDLE, "device_id": 0, "byte_size": 8},
            "failed to register CUDA shared memory region: 'r', GPUs not supported",
        ),
        ({"device_id": 0, "byte_size": 8}, "Shared memory register request has no 'raw_handle' field"),
        ({"raw_handle": {}}, "Unable to parse 'b64': attempt to access non-existing object member 'b64' in raw_handle"),
        ({"raw_handle": HANDLE}, "attempt to access non-existing object member 'device_id'"),
        ({"raw_handle": HANDLE, "device_id": 0}, "attempt to access non-existing object member 'byte_size'"),
        (
            {"raw_handle": {"b64": "a b"}, "device_id": 0, "byte_size": 8},
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
        ),
        ({"raw_handle": 5}, "Unable to parse 'raw_handle': attempt to access JSON non-object as object, got int"),
    ],
)
async def test_cuda_registrations_without_a_gpu(app: HttpApp, body: Any, text: str) -> None:
    answer = await post(app, f"{CUDA}/region/r/register", body)
    assert answer.status == 400
    assert answer.error.startswith(text)


async def test_a_server_that_allows_no_registration(segment: ClientSegment) -> None:
    """Status works, all else is refused with the flag to set."""
    app = make_app(allow=False)
    for path, body in (
        (f"{SYSTEM}/region/r/register", {"key": segment.key, "byte_size": 8}),
        (f"{SYSTEM}/region/r/unregister", {}),
        (f"{SYSTEM}/unregister", {}),
        (f"{CUDA}/region/r/register", {"raw_handle": HANDLE, "device_id": 0, "byte_size": 8}),
        (f"{CUDA}/unregister", {}),
    ):
        answer = await post(app, path, body)
        assert (answer.status, answer.error) == (501, DISABLED)
    assert (await call(app, "GET", f"{SYSTEM}/status")).json == []
    assert (await call(app, "GET", f"{CUDA}/status")).json == []


def place(offset: int, byte_size: int, region: str = "r") -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": byte_size}


def infer_body(inputs: Any, outputs: Any = None, shape: list[int] | None = None) -> bytes:
    entry = {"name": "A", "datatype": "FP32", "shape": shape or [4], "parameters": inputs}
    members = {"inputs": [entry]}
    return json.dumps(members if outputs is None else {**members, "outputs": outputs}).encode()


async def test_inputs_and_outputs_in_regions(app: HttpApp, segment: ClientSegment) -> None:
    """Read at an offset, written at an offset; the response says nothing of the data."""
    await register(app, segment)
    body = infer_body(place(16, 16), [{"name": "OUT_A", "parameters": place(0, 20)}])
    answer = await post(app, INFER, body)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["outputs"] == [{"name": "OUT_A", "datatype": "FP32", "shape": [4]}]
    numbers = np.frombuffer(segment.contents, np.float32).tolist()
    assert numbers == [4, 5, 6, 7, *range(4, 16)]


async def test_a_region_beside_other_encodings(app: HttpApp, segment: ClientSegment) -> None:
    """One input in a region, one in the binary tail; the outputs in JSON and in binary."""
    await register(app, segment)
    text = json.dumps(
        {
            "inputs": [
                {"name": "A", "datatype": "FP32", "shape": [2], "parameters": place(8, 8)},
                {"name": "B", "datatype": "INT8", "shape": [3], "parameters": {"binary_data_size": 3}},
            ],
            "outputs": [{"name": "OUT_A"}, {"name": "OUT_B", "parameters": {"binary_data": True}}],
        }
    ).encode()
    headers = {"inference-header-content-length": str(len(text))}
    answer = await call(app, "POST", INFER, text + b"\1\2\3", headers)
    size = int(answer.headers["inference-header-content-length"])
    outputs = json.loads(answer.body[:size])["outputs"]
    assert [outputs[0]["data"], answer.body[size:]] == [[2.0, 3.0], b"\1\2\3"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "status", "text"),
    [
        (place(0, 16, "x"), None, 404, "Unable to find shared memory region: 'x'"),
        (place(64, 16), None, 400, "Invalid offset for shared memory region: 'r'"),
        (place(56, 16), None, 400, "Invalid offset + byte size for shared memory region: 'r'"),
        (
            place(8, 2**64 - 1),
            None,
            400,
            "Integer overflow detected: byte_size (18446744073709551615) + offset (8) exceeds maximum value "
            "(18446744073709551615) for region 'r'",
        ),
        (place(0, 16), [{"name": "OUT_A", "parameters": place(0, 8, "x")}], 404, "Unable to find shared memory region"),
        (
            place(0, 16),
            [{"name": "OUT_A", "parameters": place(0, 8)}],
            400,
            "shared memory size specified with the request for output 'OUT_A' (8 bytes) should be at least 16 bytes to "
            "hold the results",
        ),
        (
            {**place(0, 16), "binary_data_size": 16},
            None,
            400,
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            "'shared_memory_region' in 'parameters'. But set 'binary_data_size' 'shared_memory_region'",
        ),
    ],
)
async def test_wrong_uses(
    app: HttpApp, segment: ClientSegment, inputs: Any, outputs: Any, status: int, text: str
) -> None:
    """And the region is free again after each."""
    await register(app, segment)
    answer = await post(app, INFER, infer_body(inputs, outputs))
    assert answer.status == status
    assert answer.error.startswith(text)
    await post(app, f"{SYSTEM}/unregister")
    assert await regions(app) == []


async def test_a_truncated_segment_is_the_clients_mistake(app: HttpApp, segment: ClientSegment) -> None:
    await register(app, segment)
    segment.truncate(8)
    answer = await post(app, INFER, infer_body(place(0, 16)))
    assert answer.status == 400
    assert "shared memory region 'r' was truncated" in answer.error


async def test_a_region_stays_while_a_request_uses_it(segment: ClientSegment) -> None:
    """Unregistered in the middle, it is written to by the response, and then goes."""
    core = FakeCore()
    app = make_app(core)
    with closing(app.services.shared_memory):
        await register(app, segment)
        body = infer_body(place(0, 16), [{"name": "OUT_A", "parameters": place(32, 16)}])
        exchange = Exchange("POST", "/v2/models/gate/infer", body)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, app)
            await core.started.wait()
            assert (await post(app, f"{SYSTEM}/region/r/unregister")).status == 200
            assert await regions(app) == ["r"]
            core.gate.set()
        assert exchange.answer.status == 200
        assert await regions(app) == []
        assert np.frombuffer(segment.contents, np.float32)[8:12].tolist() == [0, 1, 2, 3]


async def test_a_client_that_leaves_gives_its_region_back(segment: ClientSegment) -> None:
    core = FakeCore()
    app = make_app(core)
    with closing(app.services.shared_memory):
        await register(app, segment)
        exchange = Exchange("POST", "/v2/models/wait/infer", infer_body(place(0, 16)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, app)
            await core.started.wait()
            await post(app, f"{SYSTEM}/unregister")
            assert await regions(app) == ["r"]
            exchange.disconnect.set()
        assert await regions(app) == []


async def test_classes_with_labels() -> None:
    """In JSON and in binary; the batch is the model's."""
    scores = np.array([[0.1, 0.7, 0.2], [5, 4, 3]], np.float32)
    core = FakeCore(class_labels=("cat", "dog"), respond=lambda request: scored(request, scores))
    app = make_app(core)
    outputs = [{"name": "S", "parameters": {"classification": 2}}]
    answer = await post(app, INFER, json.dumps({"inputs": [], "outputs": outputs}).encode())
    assert answer.json["outputs"] == [
        {
            "name": "S",
            "datatype": "BYTES",
            "shape": [2, 2],
            "data": ["0.700000:1:dog", "0.200000:2", "5.000000:0:cat", "4.000000:1:dog"],
        }
    ]
    core.max_batch_size = 0
    outputs[0]["parameters"] = {"classification": 1, "binary_data": True}
    answer = await post(app, INFER, json.dumps({"inputs": [], "outputs": outputs}).encode())
    size = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:size])["outputs"][0]["shape"] == [1]
    assert answer.body[size:] == b"\x0a\0\0\x005.000000:3"


async def test_classes_of_what_has_none() -> None:
    core = FakeCore(inputs=(TensorMetadata("A", "BYTES", (1,)),))
    inputs = [{"name": "A", "datatype": "BYTES", "shape": [1], "data": ["x"]}]
    outputs = [{"name": "OUT_A", "parameters": {"classification": 1}}]
    answer = await post(make_app(core), INFER, {"inputs": inputs, "outputs": outputs})
    assert answer.status == 400
    assert answer.error.startswith("class result not available for output due to unsupported type 'BYTES'")


def scored(request: InferenceRequest, scores: Any) -> InferenceResponse:
    return InferenceResponse("echo", 1, [Tensor("S", DataType.FP32, scores.shape, scores.tobytes())])
