"""A request that is answered with an error leaves a line in the log: model, id, status, time, and whose fault it is."""

from __future__ import annotations

import json
import queue
import re
import shutil
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from protocol.log.failure_log import LINES_PER_SECOND
from tests.e2e.client import Client
from tests.e2e.http2_client import Http2Client
from tests.e2e.raw import infer_bytes, post
from tests.e2e.repository import PYTHON_MODELS
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually

RAISE = {"ACTION": np.array([b"raise"], np.object_)}
REFUSE = {"ACTION": np.array([b"error"], np.object_)}
ALLOWED = "--backend-config=python,allow-in-process=true"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
WHERE = {
    "failing": "",
    "failing_in_thread": 'parameters { key: "ISOLATION" value { string_value: "in_process" } }\n',
    "failing_in_loop": 'parameters { key: "ISOLATION" value { string_value: "in_loop" } }\n',
    "failing_stream": DECOUPLED,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("failing_models")
    for name, more in WHERE.items():
        shutil.copytree(PYTHON_MODELS / "failing", models / name, ignore=shutil.ignore_patterns("__pycache__"))
        with (models / name / "config.pbtxt").open("a") as config:
            config.write(more)
    with ServerProcess("--log-verbose=1", ALLOWED, repository=models) as process:
        assert len(process.addresses) == 3
        yield process


@pytest.fixture(autouse=True)
def pace() -> Iterator[None]:
    """No test has more than two failures of a kind: each leaves as many tokens as it found."""
    yield
    time.sleep(2 / LINES_PER_SECOND)


def line_of(server: ServerProcess, request_id: str) -> tuple[str, str]:
    """The level's letter and the text of the only line about a request."""
    pattern = rf'(?m)^([IWE])[^\n]*\] "([^\n]* failed: [^\n]*{re.escape(request_id)}[^\n]*)"( [a-z_]+=[^\n]*)?$'
    server.wait_for_line(pattern)
    (found,) = re.findall(pattern, server.log)
    assert found[2] or not request_id
    return found[0], found[1]


def check(server: ServerProcess, level: str, call: str, model: str, request_id: str, status: str, text: str) -> None:
    letter, line = line_of(server, request_id)
    assert letter == level
    start = f"{call} failed: model '{model}', version 'latest', id '{request_id}', status {status}, after "
    assert line.startswith(start)
    assert re.fullmatch(rf"\d+\.\d{{3}} ms: .*{text}.*", line.removeprefix(start))


def json_body(request_id: str, action: str = "raise") -> dict[str, Any]:
    return {"id": request_id, "inputs": [{"name": "ACTION", "datatype": "BYTES", "shape": [1], "data": [action]}]}


@pytest.mark.parametrize("path", ["without a task", "in a task"])
@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
@pytest.mark.parametrize("model", list(WHERE)[:3])
def test_http(server: ServerProcess, model: str, http2: bool, path: str) -> None:
    """A model that raises is the server's failure, one that refuses a request the client's."""
    url = f"http://{server.addresses['http']}/v2/models/{model}/infer"
    with httpx.Client(http1=not http2, http2=http2, trust_env=False) as client:
        for action, status, level, text in (("raise", 500, "E", "raised on purpose"), ("error", 400, "I", "refused")):
            request_id = f"{model}-{http2}-{path}-{action}"
            content: Any = json.dumps(json_body(request_id, action)).encode()
            if path == "in a task":  # a body without a length takes one
                content = iter([content])
            assert client.post(url, content=content).status_code == status
            check(server, level, "HTTP infer", model, request_id, str(status), text)


@pytest.mark.parametrize("call", ["generate", "generate_stream"])
def test_generate(server: ServerProcess, call: str) -> None:
    body = json.dumps({"id": f"by-{call}", "ACTION": "raise"}).encode()
    answer = httpx.post(f"http://{server.addresses['http']}/v2/models/failing_stream/{call}", content=body)
    assert answer.status_code == 500
    check(server, "E", f"HTTP {call}", "failing_stream", f"by-{call}", "500", "raised on purpose")


@pytest.mark.parametrize("compression", [None, "gzip"], ids=["without a task", "in a task"])
@pytest.mark.parametrize("model", list(WHERE)[:3])
def test_grpc(server: ServerProcess, model: str, compression: str | None) -> None:
    # A small message would not be sent compressed, and take no task.
    padding: dict[str, Any] = {"parameters": {"padding": "x" * 2000}} if compression else {}
    with Client("grpc", server.addresses["grpc"]) as client:
        for inputs, status, level, text in (
            (RAISE, "INTERNAL", "E", "raised on purpose"),
            (REFUSE, "INVALID_ARGUMENT", "I", "refused"),
        ):
            request_id = f"{model}-{compression}-{status}"
            with pytest.raises(InferenceServerException):
                client.infer(model, inputs, request_id=request_id, compression_algorithm=compression, **padding)
            check(server, level, "gRPC ModelInfer", model, request_id, status, text)


@pytest.mark.parametrize("model", ["failing", "failing_in_loop", "failing_stream"])
@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends the stream"])
def test_grpc_stream(server: ServerProcess, model: str, ends: bool) -> None:
    """One line, also where the error is the stream's own end."""
    answers: queue.Queue[Any] = queue.Queue()
    request_id = f"stream-{model}-{ends}"
    with Client("grpc", server.addresses["grpc"]) as client:
        client.raw.start_stream(
            lambda result, error: answers.put(error), headers={"triton_grpc_error": "true"} if ends else None
        )
        client.raw.async_stream_infer(model, client.tensors(RAISE), request_id=request_id)
        assert "raised on purpose" in str(answers.get(timeout=60))
        client.raw.stop_stream()
    check(server, "E", "gRPC ModelStreamInfer", model, request_id, "INTERNAL", "raised on purpose")


def test_mistakes_of_clients(server: ServerProcess) -> None:
    """A model that is not there, inputs that do not fit, a request that cannot be read: seen at the verbose level, as
    far as the request could be read."""
    address = server.addresses["http"]
    body = json.dumps(json_body("not-there")).encode()
    assert post(address, "/v2/models/absent/infer", body).status == 404
    check(server, "I", "HTTP infer", "absent", "not-there", "404", "absent")
    assert post(address, "/v2/models/failing/infer", b'{"id":"bad-json","inputs":7}').status == 400
    check(server, "I", "HTTP infer", "failing", "bad-json", "400", "inputs")
    assert post(address, "/v2/models/failing/versions/7/infer", b'{"inputs"').status == 404
    assert "version '7', id '', status 404" in server.wait_for_line(r"[^\n]*version '7'[^\n]*").group()
    assert infer_bytes(server.addresses["grpc"], b"\xff\xff").status == "INVALID_ARGUMENT"
    server.wait_for_line(r"gRPC ModelInfer failed: model '', version 'latest', id '', status INVALID_ARGUMENT")
    with Client("grpc", server.addresses["grpc"]) as client, pytest.raises(InferenceServerException):
        client.infer("absent", RAISE, request_id="not-there-either")
    check(server, "I", "gRPC ModelInfer", "absent", "not-there-either", "NOT_FOUND", "absent")


def test_an_id_cannot_forge_a_line(server: ServerProcess) -> None:
    forged = 'E0203 04:05:06.007008 1 x.py:1] "forged by a client"'
    with Client("http", server.addresses["http"]) as client, pytest.raises(InferenceServerException):
        client.infer("failing", RAISE, request_id=f"hostile\n{forged}")
    line_of(server, "hostile")
    assert not re.search(r"(?m)^E0203", server.log)


def test_other_calls_and_other_levels_leave_none(server: ServerProcess) -> None:
    """Only inference requests have a line, and a client's mistakes only as long as the verbose level is on. Ends the
    verbose level of this server, so it is the last test."""
    address = server.addresses["http"]
    assert httpx.get(f"http://{address}/v2/models/absent_metadata").status_code == 404
    assert httpx.get(f"http://{address}/v2/models/failing/infer").status_code == 405
    assert httpx.post(f"http://{address}/v2/logging", content=b'{"log_verbose_level":0}').status_code == 200
    assert post(address, "/v2/models/unseen/infer", json.dumps(json_body("unseen")).encode()).status == 404
    assert post(address, "/v2/models/failing/infer", json.dumps(json_body("the-last")).encode()).status == 500
    check(server, "E", "HTTP infer", "failing", "the-last", "500", "raised on purpose")
    assert "unseen" not in server.log
    assert "absent_metadata" not in server.log
    assert "status 405" not in "".join(re.findall(r"[^\n]*failed:[^\n]*", server.log))


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that takes two calls on a connection, and whose log has no other lines than those of a test."""
    models = tmp_path_factory.mktemp("narrow")
    shutil.copytree(PYTHON_MODELS / "slow", models / "slow", ignore=shutil.ignore_patterns("__pycache__"))
    with ServerProcess("--grpc-max-concurrent-streams=2", "--log-verbose=1", repository=models) as process:
        assert process.addresses
        yield process


def test_a_request_whose_head_is_too_large(narrow: ServerProcess) -> None:
    """Over HTTP/1 and HTTP/2: nothing of it is known but that."""
    host, _, port = narrow.addresses["http"].rpartition(":")
    line = r"HTTP request failed: model '', version 'latest', id '', status 431: the request's line and headers exceed"
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nx: " + b"x" * 70_000 + b"\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 431 ")
    narrow.wait_for_line(line)
    with httpx.Client(http1=False, http2=True, trust_env=False) as over_http2:
        url = f"http://{narrow.addresses['http']}/v2/models/slow/infer"
        assert over_http2.post(url, headers={"x": "x" * 70_000}, content=b"{}").status_code == 431
    assert eventually(lambda: len(re.findall(line, narrow.log)) == 2)


def test_calls_that_are_one_too_many_on_a_connection(narrow: ServerProcess) -> None:
    """They are refused by a reset, of which clients say little."""
    begun = b"\0\0\0\1\0x"
    with Http2Client(narrow.addresses["grpc"], window=0) as client:
        for _ in range(4):  # the first two wait for the rest of their messages
            client.post("/inference.GRPCInferenceService/ModelInfer", begun, is_grpc=True, has_more=True)
        client.read_until(lambda: sum(each.reset_code is not None for each in client.responses.values()) == 2)
    narrow.wait_for_line(r"gRPC ModelInfer failed: .*, status UNAVAILABLE: 2 calls are in progress on this connection")
