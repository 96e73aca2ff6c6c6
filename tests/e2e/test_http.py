"""What only a whole server shows of HTTP: models of every kind, names that lead elsewhere, foreign clients."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from onnx import TensorProto, helper

from tests.e2e.conftest import FLAGS
from tests.e2e.edge_processes import metric
from tests.e2e.repository import add_add_sub, save
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually

REPEAT = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    \"\"\"Sends its text as often as the parameter `count` says, then fails if `fails` does.\"\"\"

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            parameters = json.loads(request.parameters() or "{}")
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            for _ in range(parameters.get("count", 1)):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("said", text)]))
            if parameters.get("fails"):
                error = pb_utils.TritonError("lost my voice")
                sender.send(pb_utils.InferenceResponse([], error))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
REPEAT_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "said" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
TELL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    \"\"\"Replies with the parameters of its request.\"\"\"

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("parameters", np.array([request.parameters()], np.object_))])
            for request in requests
        ]
"""
TELL_CONFIG = """
backend: "python"
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]
output [ { name: "parameters" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
SCORES_CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
"""


def add_python_model(model: Path, code: str, config: str) -> None:
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(code)
    (model / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("http_models")
    add_python_model(directory / "repeat", REPEAT, REPEAT_CONFIG)
    add_python_model(directory / "tell", TELL, TELL_CONFIG)
    add_add_sub(directory / "add_sub", versions=(1,))
    scores = directory / "scores"
    given, got = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 3])] for name in ("IN", "OUT"))
    save([helper.make_node("Identity", ["IN"], ["OUT"])], given, got, scores / "1" / "model.onnx")
    (scores / "config.pbtxt").write_text(SCORES_CONFIG)
    (scores / "labels.txt").write_text("cat\ndog\nhörse\n")
    return directory


@pytest.fixture(scope="module")
def server(models: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    flags = (
        *FLAGS.get(request.param, ()),
        "--model-control-mode=explicit",
        "--load-model=*",
        "--allow-client-shm=true",
        "--http-header-forward-pattern=^x-",
        "--http-max-input-size=1000000",
        "--http-restricted-api=logging:admin=secret",
    )
    with ServerProcess(*flags, repository=models) as process:
        assert len(process.addresses) == 3
        yield process


def call(
    server: ServerProcess, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """One request whose path is sent as it is."""
    connection = http.client.HTTPConnection(server.addresses["http"], timeout=TIMEOUT_SECONDS)
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    try:
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def error(answer: tuple[int, bytes]) -> tuple[int, str]:
    status, body = answer
    assert list(json.loads(body)) == ["error", "request_id"]
    return status, str(json.loads(body)["error"])


def test_classes_with_their_labels(server: ServerProcess) -> None:
    body = {
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [2, 3], "data": [0.5, 2, -1, 7, 8, 9]}],
        "outputs": [{"name": "OUT", "parameters": {"classification": 2}}],
    }
    status, answer = call(server, "POST", "/v2/models/scores/infer", body)
    assert status == 200
    assert json.loads(answer)["outputs"] == [
        {
            "name": "OUT",
            "datatype": "BYTES",
            "shape": [2, 2],
            "data": ["2.000000:1:dog", "0.500000:0:cat", "9.000000:2:hörse", "8.000000:1:dog"],
        }
    ]


def test_a_raw_request(server: ServerProcess) -> None:
    """The body is the only input's data; the answer is binary."""
    headers = {"Inference-Header-Content-Length": "0"}
    status, answer = call(server, "POST", "/v2/models/scores/infer", bytes(range(12)), headers)
    assert (status, answer[-12:]) == (200, bytes(range(12)))
    status, text = error(call(server, "POST", "/v2/models/scores/infer", bytes(10), headers))
    assert (status, "input byte size mismatch for input 'IN'" in text) == (400, True)
    status, text = error(call(server, "POST", "/v2/models/add_sub/infer", bytes(64), headers))
    assert status == 400
    assert text == (
        "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'add_sub' model configuration"
    )


def events(answer: tuple[int, bytes]) -> list[Any]:
    status, body = answer
    assert status == 200
    return [json.loads(part.removeprefix(b"data: ")) for part in body.split(b"\n\n")[:-1]]


def test_a_model_that_says_it_many_times(server: ServerProcess) -> None:
    path = "/v2/models/repeat/generate_stream"
    found = events(call(server, "POST", path, {"text": "hi", "count": 3}))
    assert found == [{"model_name": "repeat", "model_version": "1", "said": "hi"}] * 3
    assert events(call(server, "POST", path, {"text": "hi", "count": 0})) == []
    found = events(call(server, "POST", path, {"text": "hi", "count": 1, "fails": True}))
    assert (found[0]["said"], found[1]["error"]) == ("hi", "lost my voice")
    status, body = call(server, "POST", path, {"text": "hi", "count": 0, "fails": True})
    [event] = events((200, body))
    assert (status, event["error"], len(event["request_id"])) == (500, "lost my voice", 32)


@pytest.mark.parametrize(("count", "status"), [(1, 200), (0, 400), (2, 400)])
def test_a_model_that_says_it_once(server: ServerProcess, count: int, status: int) -> None:
    found, body = call(server, "POST", "/v2/models/repeat/generate", {"text": "hi", "count": count})
    assert found == status
    if status == 400:
        assert json.loads(body)["error"].startswith("generate expects model to produce exactly 1 response")


def test_a_decoupled_model_has_no_infer(server: ServerProcess) -> None:
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hi"]}]}
    status, text = error(call(server, "POST", "/v2/models/repeat/infer", body))
    assert (status, text) == (501, "HTTP end point doesn't support models with decoupled transaction policy")


def test_headers_and_parameters_reach_the_model(server: ServerProcess) -> None:
    """Headers as their client wrote them, and over what the body says."""
    body = {"inputs": [], "parameters": {"mine": 1, "X-User": "forged", "half": 0.5, "yes": True}}
    headers = {"X-User": "ada", "other": "x"}
    status, answer = call(server, "POST", "/v2/models/tell/infer", body, headers)
    assert status == 200
    (told,) = json.loads(answer)["outputs"][0]["data"]
    assert json.loads(told) == {"mine": 1, "X-User": "ada", "half": 0.5, "yes": True}
    status, answer = call(server, "POST", "/v2/models/tell/generate", {"priority": 3, "stream": False}, headers)
    assert json.loads(json.loads(answer)["parameters"]) == {"priority": 3, "stream": False}


TRAVERSAL = "invalid model name '{}', model name must not contain path traversal characters"
FILE = base64.b64encode(b"x").decode()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        # Models that are looked up by name find none.
        ("GET", "/v2/models/..", None, 404, "Request for unknown model: '..' is not found"),
        ("GET", "/v2/models/%2e%2e%2fadd_sub", None, 404, "Request for unknown model: '../add_sub' is not found"),
        ("GET", "/v2/models/%00/config", None, 404, "Request for unknown model"),
        ("GET", "/v2/models/add_sub%00", None, 404, "Request for unknown model"),
        ("GET", "/v2/models/%ff", None, 404, "Request for unknown model"),
        ("POST", "/v2/models/..%2fadd_sub/infer", {"inputs": []}, 404, "Request for unknown model"),
        ("POST", "/v2/models/a%2fb/generate", {}, 404, "Request for unknown model"),
        ("GET", "/v2/models/a%2fb/trace/setting", None, 404, "Request for unknown model"),
        ("GET", "/v2/models/%00/stats", None, 400, "requested model"),
        ("GET", "/v2/models/add_sub/versions/0", None, 404, "Request for unknown model: 'add_sub' version 0"),
        ("GET", "/v2/models/add_sub/versions/99999999999999999999", None, 400, "failed to get model version"),
        ("GET", "/v2/models/add_sub/versions/1%00", None, 404, "Not Found"),
        ("GET", "/v2/../v2", None, 404, "Not Found"),
        ("GET", "/v2//models/add_sub", None, 404, "Not Found"),
        # Models that are loaded by name stay in their repository.
        ("POST", "/v2/repository/models/../load", None, 400, TRAVERSAL.format("..")),
        ("POST", "/v2/repository/models/..%2f..%2fetc/load", None, 400, TRAVERSAL.format("../../etc")),
        ("POST", "/v2/repository/models/%2fetc/load", None, 400, TRAVERSAL.format("/etc")),
        ("POST", "/v2/repository/models/a%00b/load", None, 400, "invalid model name 'a\0b'"),
        ("POST", "/v2/repository/models/%ff/load", None, 400, "failed to load '\ufffd', failed to poll from"),
        ("POST", "/v2/repository/models/" + "x" * 5000 + "/load", None, 400, "failed to load"),
        ("POST", "/v2/repository/models/..%2fx/unload", None, 200, ""),
        ("POST", "/v2/repository/..%2fx/models/m/load", None, 501, "'repository_name' specification is not supported"),
        # Files stay in their model.
        ("POST", "LOAD", {"file:../x": FILE}, 400, "Invalid file parameter"),
        ("POST", "LOAD", {"file:1/../../../x": FILE}, 400, "Invalid file parameter"),
        ("POST", "LOAD", {"file:/../x": FILE}, 400, "Invalid file parameter"),
        ("POST", "LOAD", {"file:1/a\0b": FILE}, 400, ""),
        ("POST", "LOAD", {"file:": FILE}, 400, ""),
        ("POST", "LOAD", {"file:1/" + "x" * 5000: FILE}, 400, ""),
        ("POST", "LOAD", {"file:1/\udc80": FILE}, 400, ""),
        # Regions are names, and keys are segments.
        (
            "GET",
            "/v2/systemsharedmemory/region/..%2f%00/status",
            None,
            404,
            "Unable to find system shared memory region",
        ),
        ("POST", "SHM", {"key": "/../etc/passwd", "byte_size": 8}, 400, "cannot register shared memory region 'r'"),
        ("POST", "SHM", {"key": "/a\0b", "byte_size": 8}, 400, "cannot register shared memory region 'r'"),
        (
            "POST",
            "/v2/systemsharedmemory/region/%00/register",
            {"key": "/k", "byte_size": 8},
            400,
            "invalid shared memory",
        ),
    ],
)
def test_names_that_lead_elsewhere(
    server: ServerProcess, method: str, path: str, body: Any, status: int, text: str
) -> None:
    """The right refusal, and never a defect of ours."""
    if path == "LOAD":
        config = '{"backend":"onnxruntime"}'
        path, body = "/v2/repository/models/fresh/load", {"parameters": {"config": config, **body}}
    elif path == "SHM":
        path = "/v2/systemsharedmemory/region/r/register"
    answer = call(server, method, path, body)
    assert answer[0] == status, answer
    if status != 200:
        assert error(answer)[1].startswith(text)


def test_a_model_from_files_of_its_load(server: ServerProcess, models: Path) -> None:
    """Without a place in any repository."""
    file = base64.b64encode((models / "scores" / "1" / "model.onnx").read_bytes()).decode()
    config = {"backend": "onnxruntime", "max_batch_size": 4}
    parameters = {"config": json.dumps(config), "file:1/model.onnx": file}
    path = "/v2/repository/models/brought"
    assert call(server, "POST", f"{path}/load", {"parameters": parameters}) == (200, b"")
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    status, answer = call(server, "POST", "/v2/models/brought/infer", body)
    assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [1.0, 2.0, 3.0])
    assert call(server, "POST", f"{path}/unload") == (200, b"")
    status, text = error(call(server, "POST", f"{path}/load", {"parameters": {"file:1/model.onnx": file}}))
    assert (status, text) == (400, "Load parameter 'config' must be specified for model file override")


def test_a_restricted_api(server: ServerProcess) -> None:
    assert error(call(server, "GET", "/v2/logging")) == (403, "This API is restricted, expecting header 'admin'")
    assert call(server, "GET", "/v2/logging", headers={"Admin": "secret"})[0] == 200


def test_what_limits_refuse_is_counted(server: ServerProcess) -> None:
    """Edge processes tell the core once a second."""
    assert call(server, "POST", "/v2/models/add_sub/infer", b" " * 1_000_001)[0] == 413
    refusals = {"protocol": "http", "limit": "max_input_size"}
    assert eventually(lambda: metric(server, "trioton_limit_refusals_total", **refusals) >= 1)


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(*arguments: str, data: bytes | None = None) -> tuple[str, bytes]:
    """The version of HTTP and the status; and the body."""
    command = ["curl", "--silent", "--show-error", "--max-time", "30", "--write-out", "\\n%{http_version} %{http_code}"]
    done = subprocess.run([*command, *arguments], input=data, capture_output=True, timeout=TIMEOUT_SECONDS, check=True)
    body, _, tail = done.stdout.rpartition(b"\n")
    return tail.decode(), body


@needs_curl
@pytest.mark.parametrize(
    ("flag", "version"),
    [("--http1.0", "1.1"), ("--http1.1", "1.1"), ("--http2-prior-knowledge", "2"), ("--http2", "2")],
)
def test_curl(server: ServerProcess, flag: str, version: str) -> None:
    """In every version of HTTP that it has; 1.0 is answered in 1.1, and `--http2` upgrades a request without a body."""
    url = f"http://{server.addresses['http']}/v2/models"
    found, body = curl(flag, f"{url}/add_sub/ready")
    assert (found, body) == (f"{version} 200", b'{"name":"add_sub","ready":true}')
    request = json.dumps({"text": "hi", "count": 2}).encode()
    found, body = curl(flag, "--data-binary", "@-", f"{url}/repeat/generate_stream", data=request)
    assert found.endswith(" 200")
    assert body.count(b"data: ") == 2


@needs_curl
def test_curl_asks_before_it_sends_much(server: ServerProcess) -> None:
    """It waits for `100 Continue`, or takes the refusal in its place without sending."""
    url = f"http://{server.addresses['http']}/v2/models/tell/infer"
    much = json.dumps({"inputs": [], "parameters": {"much": "x" * 900_000}}).encode()
    expect = ("--http1.1", "--header", "Expect: 100-continue", "--expect100-timeout", "20", "--data-binary", "@-")
    found, body = curl(*expect, url, data=much)
    assert (found, len(body) > 900_000) == ("1.1 200", True)
    found, body = curl(*expect, url, data=much * 2)
    assert found == "1.1 413"


@needs_curl
def test_curl_takes_compressed_answers(server: ServerProcess) -> None:
    request = json.dumps({"inputs": [], "parameters": {"much": "x" * 5000}}).encode()
    url = f"http://{server.addresses['http']}/v2/models/tell/infer"
    found, body = curl("--compressed", "--data-binary", "@-", url, data=request)
    assert (found, json.loads(body)["model_name"]) == ("1.1 200", "tell")


@needs_curl
def test_https(models: Path, tmp_path: Path) -> None:
    """With HTTP/2 by ALPN; and clients without a certificate are refused where a root is given."""
    authority = trustme.CA()
    issued, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("me@example.org")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    client.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    authority.cert_pem.write_to_path(tmp_path / "root.pem")
    flags = [f"--http-server-{what}={tmp_path / 'server.pem'}" for what in ("cert", "key")]
    flags += ["--http-use-ssl=true", f"--http-root-cert={tmp_path / 'root.pem'}"]
    flags += ["--model-control-mode=explicit", "--load-model=scores", "--metrics-use-ssl=true"]
    with ServerProcess(*flags, repository=models) as process:
        url = f"https://{process.addresses['http']}/v2/health/ready"
        trust = ("--cacert", str(tmp_path / "root.pem"))
        known = (*trust, "--cert", str(tmp_path / "client.pem"))
        assert curl(*known, url) == ("2 200", b'{"ready":true}')
        assert curl(*known, "--http1.1", url) == ("1.1 200", b'{"ready":true}')
        status, metrics = curl(*known, f"https://{process.addresses['metrics']}/metrics")
        assert status == "2 200"
        assert b"\nnv_cpu_memory_used_bytes " in metrics
        with pytest.raises(subprocess.CalledProcessError):
            curl(*trust, url)
