"""The answers to a call by the fast path and by a task, side by side: the same headers, messages and trailers."""

from __future__ import annotations

import re

import pytest
from tritonclient.grpc import service_pb2

from protocol.datatypes import DataType
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from tests.protocol.grpc.caller import SERVICE, serving
from tests.protocol.grpc.client import framed
from tests.protocol.grpc.drivers import only_fast_path
from tests.protocol.grpc.edge_services import edge_services
from tests.protocol.grpc.fakes import FakeCore
from tests.protocol.grpc.inference.test_direct_infer import request_of


def with_classes(count: int) -> bytes:
    request = service_pb2.ModelInferRequest.FromString(request_of())
    request.outputs.add(name="x").parameters["classification"].int64_param = count
    return bytes(request.SerializeToString())


def from_region() -> bytes:
    request = service_pb2.ModelInferRequest.FromString(request_of())
    request.raw_input_contents.clear()
    request.inputs[0].parameters["shared_memory_region"].string_param = "none"
    request.inputs[0].parameters["shared_memory_byte_size"].int64_param = 4
    return bytes(request.SerializeToString())


MESSAGES = {
    "plain": request_of(),
    "no id": request_of(request_id=""),
    "parameters": request_of(priority=3, other=5),
    "large": request_of(data=bytes(300_000)),
    "large answer": request_of(size=300_000),
    "classes": with_classes(2),
    "too many classes": with_classes(1 << 40),
    "no such region": from_region(),
    "unavailable": request_of("unavailable"),
    "unknown": request_of("unknown"),
    "decoupled": request_of("many"),
    "no message": b"\xff\xff",
    "empty": b"",
    "wrong size": request_of().replace(b"\x1a\x01\x04", b"\x1a\x01\x05"),
}


MADE_ID = re.compile("[0-9a-f]{32}")


async def answer(message: bytes, *, is_fast: bool, name: str, core: FakeCore | None = None) -> object:
    """Of a stream a good request follows, so that it is seen to be open."""
    async with serving(edge_services(core), has_fast_path=is_fast) as peers:
        stream = await peers.client.open(f"{SERVICE}/{name}", {})
        more = [request_of(request_id="last")] if name == "ModelStreamInfer" else []
        await peers.client.send(stream, b"".join(framed(each) for each in (message, *more)), end=True)
        response = await peers.client.finish(stream)
        headers = {name: MADE_ID.sub("ID", value) for name, value in response.headers.items()}
        return headers, MADE_ID.sub("ID", response.data.decode("latin-1")), response.reset


@only_fast_path
@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("message", MESSAGES)
async def test_requests(name: str, message: str) -> None:
    fast, task = [await answer(MESSAGES[message], is_fast=is_fast, name=name) for is_fast in (True, False)]
    assert fast == task


class Broken(FakeCore):
    """Its responses cannot be encoded."""

    async def answer(self, request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse("echo", 1, [Tensor("x", DataType.UINT8, (1,), "text")])  # type: ignore[arg-type]


@only_fast_path
@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
async def test_a_response_that_cannot_be_encoded(name: str) -> None:
    fast, task = [await answer(request_of(), is_fast=is_fast, name=name, core=Broken()) for is_fast in (True, False)]
    assert fast == task
