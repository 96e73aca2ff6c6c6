"""ModelStreamInfer by real clients that cancel, run out of time or drop their connections while answers come: nobody
else notices, and nothing of it stays."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually
from tests.e2e.test_metrics import values
from tests.protocol.grpc.client import REQUEST_HEADERS, framed

CLIENTS = 4
STREAMS_OF_A_CLIENT = 15
MOST_REQUESTS = 200

ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""
TWICE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(2):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
IN_LOOP = 'parameters { key: "ISOLATION" value { string_value: "in_loop" } }'
DECOUPLED = "model_transaction_policy { decoupled: true }"
MODELS = {
    "worker": (ECHO, CONFIG),
    "in_loop": (ECHO, CONFIG + IN_LOOP),
    "decoupled": (TWICE, CONFIG + DECOUPLED),
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository: Path = tmp_path_factory.mktemp("streamed")
    for name, (code, config) in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        (repository / name / "1" / "model.py").write_text(code)
    with ServerProcess("--backend-config=python,allow-in-process=true", repository=repository) as process:
        yield process


def request_of(model: str) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[b"\1\2\3\4"])
    request.inputs.add(name="IN", datatype="INT32", shape=[1, 1])
    return request


def use_streams(address: str, model: str, seed: int) -> int:
    """Streams that end in any way that a client has. Gives how many were cut short."""
    chance = random.Random(seed)
    cut = left = 0
    while left < STREAMS_OF_A_CLIENT:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(address, options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for _ in range(chance.randint(1, 10)):
                left += 1
                requests = chance.randint(1, MOST_REQUESTS)
                taken = chance.randint(0, requests)
                time = TIMEOUT_SECONDS if chance.random() < 0.8 else chance.random() / 20
                call = stub.ModelStreamInfer((request_of(model) for _ in range(requests)), timeout=time)
                try:
                    for _ in range(taken):
                        assert next(call).error_message == ""
                    if chance.random() < 0.7:
                        cut += 1
                        call.cancel()
                    else:
                        assert all(answer.error_message == "" for answer in call)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                        raise
                    cut += 1
    return cut


def drop_connections(address: str, model: str, seed: int) -> None:
    """Connections that are reset, with a stream and with plain calls on their way."""
    chance = random.Random(seed)
    host, _, port = address.rpartition(":")
    message = framed(request_of(model).SerializeToString())
    for _ in range(STREAMS_OF_A_CLIENT):
        client = H2Connection(H2Configuration(client_side=True))
        client.initiate_connection()
        for method in ("ModelStreamInfer", "ModelInfer"):
            stream = client.get_next_available_stream_id()
            headers = {**REQUEST_HEADERS, ":path": f"/inference.GRPCInferenceService/{method}"}
            client.send_headers(stream, list(headers.items()))
            is_stream = method == "ModelStreamInfer"
            client.send_data(stream, message * (chance.randint(1, 100) if is_stream else 1), end_stream=not is_stream)
        with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(client.data_to_send())
            if chance.random() < 0.5:
                connection.recv(chance.randint(1, 1000))  # its greeting at least


@pytest.mark.parametrize("model", MODELS)
def test_streams_that_are_cut_short_cost_nobody_else_anything(process: ServerProcess, model: str) -> None:
    address = process.addresses["grpc"]
    with ThreadPoolExecutor(CLIENTS + 1) as threads:
        uses = [threads.submit(use_streams, address, model, seed) for seed in range(CLIENTS)]
        threads.submit(drop_connections, address, model, 0).result(TIMEOUT_SECONDS)
        assert sum(use.result(TIMEOUT_SECONDS) for use in uses) > STREAMS_OF_A_CLIENT
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        (answer, *_) = stub.ModelStreamInfer(iter([request_of(model)]), timeout=TIMEOUT_SECONDS)
        assert list(answer.infer_response.raw_output_contents) == [b"\1\2\3\4"]
    assert eventually(lambda: values(process, model)["nv_inference_pending_request_count"] == 0)
    assert "Traceback" not in process.log
