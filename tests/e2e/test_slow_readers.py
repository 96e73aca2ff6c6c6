"""Clients that do not read the responses of a decoupled model: what waits for them is bounded in bytes, nobody else
notices, and whoever reads on gets everything."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually
from tests.e2e.test_metrics import values

COUNT = 60
SIZE = 4_000_000
# Of all that is in the server for one client: a response in its hands, one that waits, one that comes, and buffers.
MOST_GROWTH = 15 * SIZE

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count, size = request.inputs()[0].as_numpy()
            text = np.array([b"x" * int(size)], np.object_)
            sender = request.get_response_sender()
            for number in range(count):
                if sender.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([
                    pb_utils.Tensor("NUMBER", np.array([number], np.int32)), pb_utils.Tensor("TEXT", text)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """
backend: "python"
input [ { name: "WANTED" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
model_transaction_policy { decoupled: true }
"""
ENSEMBLE = """
platform: "ensemble"
input [ { name: "WANTED" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step { model_name: "many" model_version: -1 input_map { key: "WANTED" value: "WANTED" }
  output_map { key: "NUMBER" value: "NUMBER" } output_map { key: "TEXT" value: "TEXT" } } }
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository: Path = tmp_path_factory.mktemp("slow_readers")
    for name, config in (("many", CONFIG), ("ensemble", ENSEMBLE)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    (repository / "many" / "1" / "model.py").write_text(MODEL)
    with ServerProcess(repository=repository) as process:
        assert process.addresses
        yield process


def resident(process: ServerProcess) -> int:
    """Bytes of the server's own process."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * 4096


def request_of(model: str, count: int, size: int) -> Any:
    wanted = count.to_bytes(4, "little") + size.to_bytes(4, "little")
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[wanted])
    request.inputs.add(name="WANTED", datatype="INT32", shape=[2])
    return request


class OverGrpc:
    """A client that takes no more than its windows hold, until it is told to."""

    def __init__(self, process: ServerProcess, model: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.http2.bdp_probe", 0)]
        self._channel = grpc.insecure_channel(process.addresses["grpc"], options=options)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._call = stub.ModelStreamInfer(iter([request_of(model, COUNT, SIZE)]), timeout=TIMEOUT_SECONDS)

    def read_on(self) -> list[int]:
        found = []
        for answer in self._call:
            assert answer.error_message == ""
            number, text = answer.infer_response.raw_output_contents
            assert len(text) == 4 + SIZE
            found.append(int.from_bytes(number, "little"))
        return found

    def leave(self) -> None:
        self._call.cancel()
        self._channel.close()


class OverHttp:
    """The same by `generate_stream`."""

    def __init__(self, process: ServerProcess, model: str) -> None:
        host, _, port = process.addresses["http"].rpartition(":")
        body = json.dumps({"WANTED": [COUNT, SIZE]}).encode()
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_SECONDS)
        head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)

    def read_on(self) -> list[int]:
        received = bytearray()
        with self._socket.makefile("rb") as file:
            while line := file.readline():
                if not line.strip():
                    break
            while size := int(file.readline(), 16):
                received += file.read(size)
                file.readline()
        events = [json.loads(event.removeprefix(b"data: ")) for event in bytes(received).split(b"\n\n") if event]
        assert all(len(event["TEXT"]) == SIZE for event in events)
        return [event["NUMBER"] for event in events]

    def leave(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("model", ["many", "ensemble"])
@pytest.mark.parametrize("connect", [OverGrpc, OverHttp], ids=["grpc", "http"])
def test_what_waits_for_a_client_is_bounded(
    process: ServerProcess, connect: Callable[[ServerProcess, str], OverGrpc | OverHttp], model: str
) -> None:
    """By bytes, whatever the number of responses. Another client is answered meanwhile; then the first one reads on."""
    before = resident(process)
    client = connect(process, model)
    try:
        most = 0
        with grpc.insecure_channel(process.addresses["grpc"]) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for _ in range(30):  # each takes a turn of everything: what comes without being read is there by then
                answers = stub.ModelStreamInfer(iter([request_of(model, 3, 10)]), timeout=TIMEOUT_SECONDS)
                assert len(list(answers)) >= 3
                most = max(most, resident(process) - before)
        assert most < MOST_GROWTH
        assert client.read_on() == list(range(COUNT))
    finally:
        client.leave()


@pytest.mark.parametrize("connect", [OverGrpc, OverHttp], ids=["grpc", "http"])
def test_what_waits_for_a_client_that_leaves_is_let_go(
    process: ServerProcess, connect: Callable[[ServerProcess, str], OverGrpc | OverHttp]
) -> None:
    clients = [connect(process, "many") for _ in range(2)]  # of each instance one
    for client in clients:
        client.leave()
    with ThreadPoolExecutor() as threads:
        late = threads.submit(OverGrpc(process, "many").read_on)
        assert late.result(TIMEOUT_SECONDS) == list(range(COUNT))
    assert eventually(lambda: values(process, "many")["nv_inference_pending_request_count"] == 0)
