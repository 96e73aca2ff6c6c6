"""Mixed requests against a server whose access log is on: each has exactly one line, and each line is right.

    python -m tests.attack.access_log --requests 100000

Over HTTP/1 (with and without a task), HTTP/2 and gRPC (unary, with and without a task, and streams): answered, refused,
failed in the model, to unknown models, no JSON, cancelled, over their deadline, and of clients that leave. Each request
has an id of its own, by which its lines are found.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import httpx
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e.server_process import ServerProcess, eventually

MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if array.flat[0] == 99:
                time.sleep(0.05)
            if array.flat[0] < 0:
                answers.append(pb_utils.InferenceResponse([], error=pb_utils.TritonError("negative")))
            else:
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return answers
"""
DECOUPLED = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for _ in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
dynamic_batching { }
"""
SECONDS = 60.0


@dataclass
class Sent:
    """What was sent: the status that each request has to have in the log, by its id; several where that is a race.
    Those in `perhaps` may not have reached the server before their client left."""

    expected: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    perhaps: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, request_id: str, *statuses: int | str) -> None:
        with self._lock:
            if len(statuses) > 1:
                self.perhaps.add(request_id)
            assert request_id not in self.expected
            self.expected[request_id] = statuses


def write_models(folder: Path) -> None:
    for name, code, more in (
        ("echo", MODEL, ""),
        ("many", DECOUPLED, "model_transaction_policy { decoupled: true }\n"),
    ):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(code)
        (folder / name / "config.pbtxt").write_text(CONFIG + more)


def body(value: float) -> bytes:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    return json.dumps({"inputs": [tensor]}).encode()


def http_calls(numbers: Iterator[str], chance: random.Random) -> tuple[str, str, bytes, dict[str, str], int]:
    """A request over HTTP: method, path, body, headers, and the status that it gets."""
    kind = chance.randrange(9)
    headers = {"x-request-id": next(numbers)}
    if kind == 0:
        return "POST", "/v2/models/echo/infer", body(-1), headers, 500
    if kind == 1:
        return "POST", "/v2/models/nobody/infer", body(1), headers, 404
    if kind == 2:
        return "POST", "/v2/models/echo/infer", b"{", headers, 400
    if kind == 3:
        return "GET", "/v2/models/echo", b"", headers, 200
    if kind == 4:
        return "GET", "/nowhere", b"", headers, 404
    if kind == 5:
        return "POST", "/v2/models/many/generate_stream", b'{"IN":[1]}', headers, 200
    if kind == 6:
        return "POST", "/v2/models/echo/infer", body(1), {**headers, "accept-encoding": "gzip"}, 200
    return "POST", "/v2/models/echo/infer", body(1), headers, 200


def drive_http(address: str, sent: Sent, numbers: Iterator[str], count: int, seed: int, *, http2: bool) -> None:
    chance = random.Random(seed)
    with httpx.Client(base_url=f"http://{address}", http1=not http2, http2=http2, timeout=SECONDS) as client:
        for _ in range(count):
            method, path, content, headers, status = http_calls(numbers, chance)
            sent.note(headers["x-request-id"], status)
            answer = client.request(method, path, content=content, headers=headers)
            assert answer.status_code == status, (path, answer.text)
            assert answer.headers["x-request-id"] == headers["x-request-id"]


def drive_leavers(address: str, sent: Sent, numbers: Iterator[str], count: int) -> None:
    """Clients that send a request and leave: it has its line all the same."""
    host, _, port = address.rpartition(":")
    for _ in range(count):
        request_id, content = next(numbers), body(99)
        sent.note(request_id, 499, 200)
        with socket.create_connection((host, int(port)), SECONDS) as client:
            head = f"POST /v2/models/echo/infer HTTP/1.1\r\nhost: x\r\nx-request-id: {request_id}\r\n"
            client.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
            threading.Event().wait(0.005)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # its end is a reset


def message(model: str, request_id: str, value: float) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    request.inputs.add(name="IN", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(value)
    return request


def drive_grpc(address: str, sent: Sent, numbers: Iterator[str], count: int, seed: int) -> None:
    chance = random.Random(seed)
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(SECONDS)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(count):
            request_id, kind = next(numbers), chance.randrange(8)
            compression = grpc.Compression.Gzip if chance.randrange(3) == 0 else None  # read by a task
            if kind == 0:
                sent.note(request_id, "DEADLINE_EXCEEDED", "CANCELLED")
                call = stub.ModelInfer.future(message("echo", request_id, 99), timeout=0.02)
                assert call.exception() is not None
                continue
            if kind == 1:
                sent.note(request_id, "CANCELLED", "OK")
                call = stub.ModelInfer.future(message("echo", request_id, 99), timeout=SECONDS)
                threading.Event().wait(0.01)
                call.cancel()
                continue
            model, value, status = {
                2: ("nobody", 1.0, "NOT_FOUND"),
                3: ("echo", -1.0, "INTERNAL"),
                4: ("many", 1.0, "UNIMPLEMENTED"),
            }.get(kind, ("echo", 1.0, "OK"))
            sent.note(request_id, status)
            request = message(model, request_id, value)
            call = stub.ModelInfer.future(request, timeout=SECONDS, compression=compression)
            call.exception()
            assert call.code().name == status, call


def drive_streams(address: str, sent: Sent, numbers: Iterator[str], count: int, seed: int) -> None:
    """Each request of a stream has its line, and the stream has none."""
    chance = random.Random(seed)
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        while count > 0:
            requests = []
            for _ in range(min(count, 50)):
                model, value, status = chance.choice(
                    [
                        ("echo", 1.0, "OK"),
                        ("many", 1.0, "OK"),
                        ("nobody", 1.0, "NOT_FOUND"),
                        ("echo", -1.0, "INTERNAL"),
                    ]
                )
                request_id = next(numbers)
                sent.note(request_id, status)
                requests.append(message(model, request_id, value))
            count -= len(requests)
            for _ in stub.ModelStreamInfer(iter(requests), timeout=SECONDS):
                pass


def numbered(prefix: str) -> Iterator[str]:
    number = 0
    while True:
        yield f"{prefix}-{number}"
        number += 1


def check(lines: list[str], sent: Sent) -> None:
    """Exactly one line for each request, of a status that it may have, and nothing else."""
    found = [json.loads(line) for line in lines]
    counts = Counter(each["request_id"] for each in found)
    several = {name: count for name, count in counts.items() if count > 1}
    assert not several, f"{len(several)} requests have several lines, as {next(iter(several))}"
    missing = sent.expected.keys() - counts.keys() - sent.perhaps
    assert not missing, f"{len(missing)} requests have no line, as {sorted(missing)[:5]}"
    assert len(sent.perhaps - counts.keys()) <= len(sent.perhaps) / 2, "most of those that left have no line"
    unknown = counts.keys() - sent.expected.keys()
    assert not unknown, f"{len(unknown)} lines are of no request, as {sorted(unknown)[:5]}"
    wrong = [each for each in found if each["status"] not in sent.expected[each["request_id"]]]
    assert not wrong, f"{len(wrong)} lines have the wrong status, as {wrong[0]}"
    for each in found:
        is_left = each["status"] in (499, "CANCELLED")
        assert each["cancelled"] == is_left, each
        if each["status"] in (200, "OK") and each["path"].endswith(("infer", "ModelInfer")):
            assert each["queue_us"] >= 0, each
            assert each["batch_size"] >= 1, each
            assert each["instance"] == "echo_0" or each["model"] == "many", each
            assert each["bytes_in"] > 0, each
            assert each["bytes_out"] > 0, each


def attack(requests: int, folder: Path, seed: int = 0) -> int:
    """Run them; returns how many there were."""
    write_models(folder / "models")
    file = folder / "access.log"
    sent = Sent()
    with ServerProcess(f"--access-log=all,file={file}", repository=folder / "models") as server:
        http, grpc_address = server.addresses["http"], server.addresses["grpc"]
        share = requests // 20
        drivers: list[Callable[[], None]] = [
            lambda: drive_http(http, sent, numbered("one"), share * 7, seed, http2=False),
            lambda: drive_http(http, sent, numbered("two"), share * 3, seed + 1, http2=True),
            lambda: drive_leavers(http, sent, numbered("leaver"), max(share // 5, 5)),
            lambda: drive_grpc(grpc_address, sent, numbered("unary"), share * 3, seed + 2),
            lambda: drive_streams(grpc_address, sent, numbered("stream"), share * 7, seed + 3),
        ]
        failures: list[BaseException] = []
        threads = [threading.Thread(target=_noting, args=(drive, failures)) for drive in drivers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        total = len(sent.expected)
        certain = total - len(sent.perhaps)
        eventually(lambda: file.read_bytes().count(b"\n") >= certain)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        check(file.read_text().splitlines(), sent)
    return total


def _noting(drive: Callable[[], None], failures: list[BaseException]) -> None:
    try:
        drive()
    except BaseException as error:
        failures.append(error)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        total = attack(arguments.requests, Path(folder), arguments.seed)
    print(f"{total} requests, and exactly one right line of each")


if __name__ == "__main__":
    main()
