"""What goes wrong around a server while others use it: clients that leave, stop reading or send half a request,
workers that are killed, models that are loaded anew.

Each fault is a function of a target and a chance; it returns when the fault is over, and raises `Broken` where the
server did not do what it has to.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.attack.sums import Sum

# Nothing takes so long, unless something hangs.
PATIENCE_SECONDS = 60.0
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


class Broken(Exception):
    """The server did what it must not."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server: where it listens, and how its workers are found."""

    http: tuple[str, int]
    grpc: str
    sums: list[Sum]
    workers: Callable[[], set[int]]


def cut_in_request(target: Target, chance: random.Random) -> None:
    """Close, or reset, somewhere within a request."""
    data = _infer("sum", chance.choice(target.sums))
    with _connected(target) as connection:
        connection.sendall(data[: chance.randrange(len(data))])
        if chance.random() < 0.5:
            _reset(connection)


def leave_before_answer(target: Target, chance: random.Random) -> None:
    """Send a whole request, or several, and go."""
    with _connected(target) as connection:
        connection.sendall(_infer(chance.choice(("sum", "chain")), chance.choice(target.sums)) * chance.randrange(1, 4))
        if chance.random() < 0.5:
            _reset(connection)


def half_close(target: Target, chance: random.Random) -> None:
    """End the own side after the request: the answer comes all the same, whole."""
    asked = chance.choice(target.sums)
    with _connected(target) as connection:
        connection.sendall(_infer(chance.choice(("sum", "sum_in_loop")), asked))
        connection.shutdown(socket.SHUT_WR)
        data = _until_end(connection)
    if not data.startswith(b"HTTP/1.1 503") and not data.endswith(b"".join(asked.outputs)):
        raise Broken(f"half-closed connection got {data[:300]!r}")


def send_in_pieces(target: Target, chance: random.Random) -> None:
    """A request whose bytes come one by one, or few by few."""
    asked = chance.choice(target.sums)
    data = _infer("sum", asked, closes=True)
    size = chance.choice((1, 7, 100))
    with _connected(target) as connection:
        for start in range(0, len(data), size):
            connection.sendall(data[start : start + size])
        answer = _until_end(connection)
    if not answer.startswith(b"HTTP/1.1 503") and not answer.endswith(b"".join(asked.outputs)):
        raise Broken(f"a request in pieces got {answer[:300]!r}")


def pipeline(target: Target, chance: random.Random) -> None:
    """Several requests at once: their answers come in their order."""
    asked = [chance.choice(target.sums) for _ in range(chance.randrange(2, 20))]
    *first, last = asked
    model = chance.choice(("sum", "sum_in_loop"))
    with _connected(target) as connection:
        connection.sendall(b"".join(_infer(model, each) for each in first) + _infer(model, last, closes=True))
        data = _until_end(connection)
    if b"HTTP/1.1 503" in data:
        return
    position = 0
    for each in asked:
        found = data.find(b"".join(each.outputs), position)
        if found < 0:
            raise Broken(f"answers of a pipeline are missing or out of order: {data[position : position + 300]!r}")
        position = found


def read_slowly(target: Target, chance: random.Random) -> None:
    """Ask for much and leave the answers where they are for a while."""
    with _connected(target, buffer=4096) as connection:
        data = _infer("sum", chance.choice(target.sums))
        connection.setblocking(False)
        try:
            for _ in range(200):
                connection.send(data)
        except BlockingIOError:
            pass
        time.sleep(chance.random())


def cancel_streams(target: Target, chance: random.Random) -> None:
    """Streams of a decoupled model that are cancelled after some answers, or whose connection goes."""
    with grpc.insecure_channel(target.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(chance.randrange(1, 6)):
            requests = [_count(chance.randrange(0, 200)) for _ in range(chance.randrange(1, 5))]
            answers = stub.ModelStreamInfer(iter(requests), timeout=PATIENCE_SECONDS)
            try:
                for _ in range(chance.randrange(0, 30)):
                    next(answers)
            except StopIteration:
                continue
            except grpc.RpcError as error:
                _check_status(error)
                continue
            answers.cancel()


def cancel_calls(target: Target, chance: random.Random) -> None:
    """Unary calls with deadlines that are too short, and calls that are cancelled."""
    with grpc.insecure_channel(target.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = []
        for _ in range(chance.randrange(1, 30)):
            request = service_pb2.ModelInferRequest.FromString(chance.choice(target.sums).message)
            request.model_name = chance.choice(("sum", "chain"))
            calls.append(stub.ModelInfer.future(request, timeout=chance.choice((0.0005, 0.002, PATIENCE_SECONDS))))
        for call in calls:
            if chance.random() < 0.5:
                call.cancel()
        for call in calls:
            try:
                call.result()
            except grpc.FutureCancelledError:
                pass
            except grpc.RpcError as error:
                _check_status(error)


def count_whole(target: Target, chance: random.Random) -> None:
    """Streams of a decoupled model that are read to their end: every answer is there, in its order."""
    counts = [chance.randrange(0, 50) for _ in range(chance.randrange(1, 5))]
    seen: dict[str, list[int]] = {str(number): [] for number in range(len(counts))}
    with grpc.insecure_channel(target.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        requests = [_count(count, str(number)) for number, count in enumerate(counts)]
        for answer in stub.ModelStreamInfer(iter(requests), timeout=PATIENCE_SECONDS):
            if answer.error_message:
                if "Internal" in answer.error_message:
                    raise Broken(answer.error_message)
                return  # the model is killed or loaded
            (raw,) = answer.infer_response.raw_output_contents
            seen[answer.infer_response.id].append(struct.unpack("<i", raw)[0])
    for number, count in enumerate(counts):
        if seen[str(number)] != list(range(count)):
            raise Broken(f"a decoupled request of {count} answers got {seen[str(number)]}")


def run_sequence(target: Target, chance: random.Random) -> None:
    """A sequence adds up; some clients vanish in the middle."""
    number = chance.randrange(1, 2**63)
    values = [chance.randrange(100) for _ in range(chance.randrange(1, 10))]
    vanishes = chance.random() < 0.3
    total = 0
    connection = http.client.HTTPConnection(*target.http, timeout=PATIENCE_SECONDS)
    try:
        for place, value in enumerate(values):
            is_last = place == len(values) - 1
            if is_last and vanishes:
                return
            parameters = {"sequence_id": number, "sequence_start": place == 0, "sequence_end": is_last}
            body = {
                "parameters": parameters,
                "inputs": [{"name": "VALUE", "datatype": "INT32", "shape": [1, 1], "data": [value]}],
            }
            connection.request("POST", "/v2/models/added_up/infer", json.dumps(body))
            response = connection.getresponse()
            text = response.read()
            if response.status in (503, 400, 404):  # the model has been killed or loaded, and the sequence forgotten
                return
            if response.status != 200:
                raise Broken(f"a step of a sequence got {response.status} {text[:300]!r}")
            total += value
            found = json.loads(text)["outputs"][0]["data"][0]
            if found != total and found != value:  # a worker that was killed has forgotten the sum
                raise Broken(f"a sequence of {values} has the sum {found} after step {place}")
    except (ConnectionError, http.client.HTTPException) as error:
        raise Broken(f"a step of a sequence got no answer: {error!r}") from error
    finally:
        connection.close()


def kill_worker(target: Target, chance: random.Random) -> None:
    workers = sorted(target.workers())
    if workers:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)


def reload_model(target: Target, chance: random.Random) -> None:
    """Load a model anew, while it serves."""
    connection = http.client.HTTPConnection(*target.http, timeout=PATIENCE_SECONDS)
    try:
        connection.request("POST", f"/v2/repository/models/{chance.choice(('sum', 'count', 'text'))}/load", "{}")
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    if response.status == 500:
        raise Broken(f"a load got {response.status} {text[:300]!r}")


FAULTS: dict[str, tuple[Callable[[Target, random.Random], None], float]] = {
    # with how often, in proportion to each other
    "cut_in_request": (cut_in_request, 10),
    "leave_before_answer": (leave_before_answer, 10),
    "half_close": (half_close, 10),
    "send_in_pieces": (send_in_pieces, 5),
    "pipeline": (pipeline, 10),
    "read_slowly": (read_slowly, 2),
    "cancel_streams": (cancel_streams, 5),
    "cancel_calls": (cancel_calls, 5),
    "count_whole": (count_whole, 5),
    "run_sequence": (run_sequence, 10),
    "kill_worker": (kill_worker, 0.5),
    "reload_model": (reload_model, 0.5),
}


def _infer(model: str, asked: Sum, *, closes: bool = False) -> bytes:
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: soak\r\n"
        f"inference-header-content-length: {asked.header_length}\r\ncontent-length: {len(asked.http)}\r\n"
    )
    return (head + ("connection: close\r\n" if closes else "") + "\r\n").encode() + asked.http


def _connected(target: Target, buffer: int = 0) -> socket.socket:
    connection = socket.socket()
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(PATIENCE_SECONDS)
    connection.connect(target.http)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _until_end(connection: socket.socket) -> bytes:
    data = b""
    while True:
        try:
            more = connection.recv(1 << 16)
        except TimeoutError:
            raise Broken(f"no end of the connection after {data[:300]!r}") from None
        except OSError as error:
            raise Broken(f"{error!r} after {data[:300]!r}") from None
        if not more:
            return data
        data += more


def _count(count: int, request_id: str = "") -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="count", id=request_id)
    request.inputs.add(name="COUNT", datatype="INT32", shape=[1])
    request.raw_input_contents.append(struct.pack("<i", count))
    return request


def _check_status(error: grpc.RpcError) -> None:
    allowed = (
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
    )
    if error.code() not in allowed:
        raise Broken(f"{error.code()}: {error.details()}")
