"""Clients that ask for much on many streams of one connection, and do not read: what waits for them is bounded in
bytes, others are served, and whoever reads late has an answer to each request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from tests.e2e.http2_client import Http2Client
from tests.e2e.raw import infer_json
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_batching import metric
from tests.e2e.test_metrics import values
from tests.e2e.test_slow_readers import resident

LIMIT = 48_000_000
SIZE = 4_000_000
COUNT = 100
# The half of the limit that one connection may hold, a response in each of the model's hands, and buffers. All that was
# asked for is four times as much.
MOST_GROWTH = LIMIT // 2 + 14 * SIZE

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        sizes = [int(request.inputs()[0].as_numpy()[0]) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("BYTES", np.ones(size, np.uint8))]) for size in sizes]
"""
CONFIG = """
backend: "python"
input [ { name: "SIZE" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "BYTES" data_type: TYPE_UINT8 dims: [ -1 ] } ]
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    (tmp_path / "large" / "1").mkdir(parents=True)
    (tmp_path / "large" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "large" / "1" / "model.py").write_text(MODEL)
    with ServerProcess(f"--max-request-memory={LIMIT}", repository=tmp_path) as process:
        assert process.addresses
        yield process


def message_of(size: int) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="large", raw_input_contents=[size.to_bytes(4, "little")])
    request.inputs.add(name="SIZE", datatype="INT32", shape=[1])
    message: bytes = request.SerializeToString()
    return b"\0" + len(message).to_bytes(4, "big") + message


def body_of(size: int) -> bytes:
    inputs = [{"name": "SIZE", "datatype": "INT32", "shape": [1], "data": [size]}]
    outputs = [{"name": "BYTES", "parameters": {"binary_data": True}}]
    return json.dumps({"inputs": inputs, "outputs": outputs}).encode()


class Calls:
    """ModelInfer, a call for each request."""

    service = "grpc"

    def ask(self, client: Http2Client) -> None:
        for _ in range(COUNT):
            client.post("/inference.GRPCInferenceService/ModelInfer", message_of(SIZE), is_grpc=True)

    def outcomes(self, client: Http2Client) -> list[str]:
        """Of each request "whole", or its status."""
        return [
            "whole"
            if response.headers["grpc-status"] == "0" and len(response.body) > SIZE
            else response.headers["grpc-status"]
            for response in client.responses.values()
        ]

    refusal = "8"  # RESOURCE_EXHAUSTED


class Stream:
    """ModelStreamInfer, all requests on one stream."""

    service = "grpc"
    refusal = "refused"

    def ask(self, client: Http2Client) -> None:
        client.post("/inference.GRPCInferenceService/ModelStreamInfer", COUNT * message_of(SIZE), is_grpc=True)

    def outcomes(self, client: Http2Client) -> list[str]:
        (response,) = client.responses.values()
        assert response.headers["grpc-status"] == "0"
        rest, found = bytes(response.body), []
        while rest:
            size = int.from_bytes(rest[1:5], "big")
            answer = service_pb2.ModelStreamInferResponse.FromString(rest[5 : 5 + size])
            if "would wait behind" in answer.error_message:
                found.append(self.refusal)
            else:
                found.append("whole" if len(answer.infer_response.raw_output_contents[0]) == SIZE else "cut")
            rest = rest[5 + size :]
        return found


class Rest:
    """REST over HTTP/2, a stream for each request."""

    service = "http"
    refusal = "503"

    def ask(self, client: Http2Client) -> None:
        for _ in range(COUNT):
            client.post("/v2/models/large/infer", body_of(SIZE))

    def outcomes(self, client: Http2Client) -> list[str]:
        return [
            "whole"
            if response.headers[":status"] == "200" and len(response.body) > SIZE
            else response.headers[":status"]
            for response in client.responses.values()
        ]


@pytest.mark.parametrize("way", [Calls(), Stream(), Rest()], ids=["calls", "stream", "rest"])
def test_what_waits_for_one_connection_is_bounded(process: ServerProcess, way: Calls | Stream | Rest) -> None:
    assert infer_json(process.addresses["http"], "large", body_of(10)).status == 200
    before = most = resident(process)
    with Http2Client(process.addresses[way.service], window=0) as client:
        way.ask(client)

        def all_computed() -> bool:
            nonlocal most
            most = max(most, resident(process))
            return values(process, "large")["nv_inference_count"] >= COUNT

        assert eventually(all_computed)
        client.ping()
        most = max(most, resident(process))
        assert infer_json(process.addresses["http"], "large", body_of(10)).status == 200
        for stream in client.responses:
            client.widen(stream)
        client.read_until(lambda: all(response.has_ended for response in client.responses.values()))
        outcomes = Counter(way.outcomes(client))
    assert set(outcomes) == {"whole", way.refusal}
    assert outcomes.total() == COUNT
    assert outcomes["whole"] >= LIMIT // 2 // SIZE - 1
    assert most - before < MOST_GROWTH
    refusals = metric(process, "trioton_limit_refusals_total", protocol=way.service, limit="max_request_memory")
    assert refusals == outcomes[way.refusal]
    assert infer_json(process.addresses["http"], "large", body_of(SIZE)).status == 200
