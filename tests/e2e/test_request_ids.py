"""A request's id comes back in headers, in gRPC's trailers and in the bodies of errors; the `id` stays the client's."""

from __future__ import annotations

import re
from typing import Any

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import httpx
import numpy as np
import pytest
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
ROW = {"datatype": "FP32", "shape": [1, 16], "data": [1] * 16}
JSON = {"inputs": [{"name": "INPUT0", **ROW}, {"name": "INPUT1", **ROW}]}
INFER = "/v2/models/add_sub/infer"
MADE = r"[0-9a-f]{32}"


@pytest.fixture(params=["without a task", "in a task"])
def more(request: pytest.FixtureRequest) -> dict[str, str]:
    """What makes a task read a request, or nothing."""
    return {"te": "trailers", "connection": "close"} if request.param == "in a task" else {}


@pytest.mark.parametrize(
    ("headers", "own_id", "request_id"),
    [
        ({"X-Request-Id": "from-the-header", "traceparent": PARENT}, "own", "from-the-header"),
        ({"traceparent": PARENT}, "own", "own"),
        ({"traceparent": PARENT}, "", TRACE),
        ({}, "", MADE),
        ({}, "two words", MADE),
    ],
)
def test_http(
    server: ServerProcess, more: dict[str, str], headers: dict[str, str], own_id: str, request_id: str
) -> None:
    url = f"http://{server.addresses['http']}"
    body = {"id": own_id, **JSON}
    answer = httpx.post(f"{url}{INFER}", json=body, headers={**headers, **more})
    assert answer.status_code == 200
    assert re.fullmatch(request_id, answer.headers["x-request-id"])
    assert answer.json().get("id", "") == own_id
    for path, content in ((INFER, {**body, "inputs": []}), ("/v2/models/nobody/infer", body)):
        failed = httpx.post(f"{url}{path}", json=content, headers={**headers, **more})
        assert failed.status_code in (400, 404)
        assert re.fullmatch(request_id, failed.headers["x-request-id"])
        assert failed.json()["request_id"] == failed.headers["x-request-id"]


def test_http2(server: ServerProcess) -> None:
    with httpx.Client(base_url=f"http://{server.addresses['http']}", http1=False, http2=True) as client:
        for given in ("mine", "x" * 126, "x" * 127, "x" * 128):
            for path in ("/v2", INFER, "/v2/models/nobody/infer"):
                answer = client.post(path, json=JSON, headers={"x-request-id": given})
                assert answer.headers["x-request-id"] == given


def test_every_reply_has_another_one(server: ServerProcess) -> None:
    with httpx.Client(base_url=f"http://{server.addresses['http']}") as client:
        replies = [client.get("/v2/health/live") for _ in range(3)] + [client.get("/nowhere")]
        replies += [client.post(INFER, json=JSON) for _ in range(3)]
    assert len({reply.headers["x-request-id"] for reply in replies}) == 7


def test_a_stream_of_events(server: ServerProcess) -> None:
    url = f"http://{server.addresses['http']}/v2/models/add_sub/generate_stream"
    with httpx.stream("POST", url, json={}, headers={"x-request-id": "mine"}) as answer:
        assert answer.headers["x-request-id"] == "mine"


def test_nvidias_http_client(server: ServerProcess) -> None:
    with tritonclient.http.InferenceServerClient(server.addresses["http"]) as client:
        tensors = [tritonclient.http.InferInput(f"INPUT{number}", [1, 16], "FP32") for number in (0, 1)]
        for tensor in tensors:
            tensor.set_data_from_numpy(np.ones((1, 16), np.float32))
        result = client.infer("add_sub", tensors, request_id="a b", headers={"x-request-id": "mine"})
        assert result.get_response()["id"] == "a b"
        with pytest.raises(InferenceServerException, match="nobody"):
            client.infer("nobody", tensors)


def message(model: str, own_id: str) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id=own_id)
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 16]).contents.fp32_contents.extend([1] * 16)
    return request


@pytest.mark.parametrize(
    ("metadata", "own_id", "request_id"),
    [
        ({"x-request-id": "from-the-metadata"}, "own", "from-the-metadata"),
        ({"traceparent": PARENT}, "own", "own"),
        ({"traceparent": PARENT}, "", TRACE),
        ({}, "", MADE),
        ({"x-request-id": "x" * 128}, "", "x" * 128),
    ],
)
def test_grpc(server: ServerProcess, metadata: dict[str, str], own_id: str, request_id: str) -> None:
    with grpc.insecure_channel(server.addresses["grpc"]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        headers = tuple(metadata.items())
        for compression in (None, grpc.Compression.Gzip):  # a compressed message takes a task
            response, call = stub.ModelInfer.with_call(
                message("add_sub", own_id), metadata=headers, timeout=TIMEOUT_SECONDS, compression=compression
            )
            assert response.id == own_id
            assert re.fullmatch(request_id, dict(call.trailing_metadata())["x-request-id"])
            with pytest.raises(grpc.RpcError) as failed:
                stub.ModelInfer(
                    message("nobody", own_id), metadata=headers, timeout=TIMEOUT_SECONDS, compression=compression
                )
            assert re.fullmatch(request_id, dict(failed.value.trailing_metadata())["x-request-id"])
        for method, request in (
            (stub.ServerLive, service_pb2.ServerLiveRequest()),
            (stub.ModelMetadata, service_pb2.ModelMetadataRequest(name="add_sub")),
        ):
            _, call = method.with_call(request, metadata=(("x-request-id", "7"),), timeout=TIMEOUT_SECONDS)
            assert dict(call.trailing_metadata())["x-request-id"] == "7"


def test_a_grpc_stream(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.addresses["grpc"]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        requests = iter([message("add_sub", "1"), message("nobody", "2")])
        call = stub.ModelStreamInfer(requests, metadata=(("x-request-id", "call"),), timeout=TIMEOUT_SECONDS)
        assert [response.infer_response.id for response in call] == ["1", "2"]
        assert dict(call.trailing_metadata())["x-request-id"] == "call"


def test_errors_in_a_grpc_stream(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.addresses["grpc"]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        requests = iter([message("nobody", "own"), message("nobody", ""), message("add_sub", "")])
        call = stub.ModelStreamInfer(requests, metadata=(("x-request-id", "call"),), timeout=TIMEOUT_SECONDS)
        own, nameless, fine = call
        assert own.infer_response.parameters["request_id"].string_param == "own"
        assert nameless.infer_response.parameters["request_id"].string_param == "call"
        assert "request_id" not in fine.infer_response.parameters
