"""The end of a server under load over all protocols: of ten thousand requests and more, each has an answer, or its
client knows that nothing was done for it."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from tests.e2e.counting_clients import CountingClient, Http1Client, Http2Client, total
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess

LEAST = 10_000
PATH = "/v2/models/add_sub/infer"
NUMBERS = ",".join(["1"] * 16)
BODY = (
    f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,16],"data":[{NUMBERS}]}},'
    f'{{"name":"INPUT1","datatype":"FP32","shape":[1,16],"data":[{NUMBERS}]}}]}}'
).encode()


def grpc_body() -> bytes:
    request = service_pb2.ModelInferRequest(model_name="add_sub", raw_input_contents=[bytes(64), bytes(64)])
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 16])
    message: bytes = request.SerializeToString()
    return b"\0" + len(message).to_bytes(4, "big") + message


@pytest.mark.parametrize("drain_secs", [0, 1])
def test_each_request_is_answered_or_known_not_to_be(tmp_path: Path, drain_secs: int) -> None:
    add_add_sub(tmp_path / "add_sub", versions=(1,))
    call = "/inference.GRPCInferenceService/ModelInfer"
    with ServerProcess(f"--drain-secs={drain_secs}", repository=tmp_path) as server:
        http, grpc = server.addresses["http"], server.addresses["grpc"]
        clients: list[CountingClient] = [
            *(Http1Client(http, PATH, BODY) for _ in range(4)),
            *(Http2Client(http, PATH, BODY) for _ in range(2)),
            *(Http2Client(grpc, call, grpc_body(), is_grpc=True) for _ in range(2)),
        ]
        for client in clients:
            client.start()
        while total(clients) < LEAST or min(total([client]) for client in clients) < LEAST // 50:
            assert all(client.is_alive() for client in clients), [client.problem for client in clients]
            time.sleep(0.01)
        server.signal(signal.SIGTERM)
        for client in clients:
            client.join(TIMEOUT_SECONDS)
        assert server.wait() == 0
    assert [client.problem for client in clients if client.problem is not None] == []
    outcomes = {
        "http1": sum((client.outcomes for client in clients[:4]), Counter[str]()),
        "http2": sum((client.outcomes for client in clients[4:6]), Counter[str]()),
        "grpc": sum((client.outcomes for client in clients[6:]), Counter[str]()),
    }
    assert set(outcomes["http1"]) <= {"200", "503", "not processed"}, outcomes
    assert set(outcomes["http2"]) <= {"200", "503", "not processed"}, outcomes
    assert set(outcomes["grpc"]) <= {"0", "14", "not processed"}, outcomes  # OK, UNAVAILABLE
    assert total(clients, lambda outcome: outcome in ("200", "0")) >= LEAST
    # Only what was under way when the server ended.
    assert total(clients, lambda outcome: outcome == "not processed") < 200
