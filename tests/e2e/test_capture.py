"""Payload capture behind a real server: both protocols, streams, OpenAI's routes; and its lines are sent again."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import obstore
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_batching import metric
from tests.emulators import Store

ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        get = pb_utils.get_input_tensor_by_name
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", get(each, "IN").as_numpy())]) for each in requests]
"""
STREAM = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for word in pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[0].split():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([word]))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TENSORS = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
TEXTS = """
backend: "python"
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: True }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, code, config in (("echo", ECHO, TENSORS), ("words", STREAM, TEXTS)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(code)
        (folder / name / "config.pbtxt").write_text(config)
    return folder


@pytest.fixture
def serve(repository: Path) -> Iterator[Callable[..., ServerProcess]]:
    with ExitStack() as servers:

        def start(place: Path | str, *flags: str) -> ServerProcess:
            flags = (f"--capture={place}", "--capture-file-secs=1", *flags)
            return servers.enter_context(ServerProcess(*flags, repository=repository))

        yield start


def captured(folder: Path, model: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for path in folder.glob(f"{model}/*.jsonl") for line in path.read_bytes().splitlines()]
    return sorted(found, key=lambda line: str(line["time"]))


def infer(client: Client, *values: float, **more: Any) -> Any:
    return client.infer("echo", {"IN": np.array(values, np.float32)}, **more)["OUT"].tolist()


def data(tensors: list[dict[str, Any]]) -> dict[str, Any]:
    return {tensor["name"]: tensor["data"] for tensor in tensors}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_was_asked_and_answered_is_captured_and_can_be_sent_again(
    serve: Callable[..., ServerProcess], tmp_path: Path, protocol: str
) -> None:
    server = serve(tmp_path, "--capture-share=1")
    with Client(protocol, server.addresses[protocol]) as client:
        for number in range(5):
            assert infer(client, number, 0.5, request_id=f"id {number}") == [number, 0.5]
        with pytest.raises(InferenceServerException):
            client.infer("echo", {"IN": np.array([1, 2], np.int32)})
        with pytest.raises(InferenceServerException):
            client.infer("nowhere", {"IN": np.array([1, 2], np.int32)})
    assert eventually(lambda: len(captured(tmp_path, "echo")) == 6)
    assert not captured(tmp_path, "nowhere")
    *well, failed = captured(tmp_path, "echo")
    for number, line in enumerate(well):
        assert (line["outcome"], line["version"], line["request"]["id"]) == ("ok", "1", f"id {number}")
        assert data(line["request"]["inputs"]) == {"IN": [number, 0.5]}
        assert data(line["responses"][0]["outputs"]) == {"OUT": [number, 0.5]}
        again = httpx.post(f"http://{server.addresses['http']}/v2/models/echo/infer", json=line["request"])
        assert data(again.json()["outputs"]) == data(line["responses"][0]["outputs"])
    assert (failed["outcome"], failed["error"]["kind"], failed["responses"]) == ("error", "INVALID_ARG", [])
    assert metric(server, "trioton_capture_dropped_total", reason="memory") == 0


def test_streams_have_all_of_their_responses(serve: Callable[..., ServerProcess], tmp_path: Path) -> None:
    server = serve(tmp_path, "--capture-share=words=1", "--capture-share=0")
    url = f"http://{server.addresses['http']}"
    text = "one two three"
    with httpx.stream("POST", f"{url}/v2/models/words/generate_stream", json={"text_input": text}) as answer:
        assert answer.read().count(b"data: ") == 3
    chat = {"model": "words", "prompt": text, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=chat) as answer:
        assert answer.read().count(b"data: ") >= 4
    with Client("grpc", server.addresses["grpc"]) as client:
        infer(client, 1)
        done: list[Any] = []
        client.raw.start_stream(lambda result, error: done.append(error or result))
        client.raw.async_stream_infer("words", client.tensors({"text_input": np.array([text.encode()], dtype=object)}))
        client.raw.stop_stream()
        assert len(done) == 3
    assert eventually(lambda: len(captured(tmp_path, "words")) == 3)
    for line in captured(tmp_path, "words"):
        assert data(line["request"]["inputs"])["text_input"] == [text]
        words = [data(response["outputs"])["text_output"][0] for response in line["responses"] if response["outputs"]]
        assert words == text.split()
    assert not captured(tmp_path, "echo")


def test_a_share_redacted_and_written_at_the_end(serve: Callable[..., ServerProcess], tmp_path: Path) -> None:
    server = serve(tmp_path, "--capture-share=0.25", "--capture-redact=OUT", "--capture-file-secs=3600")
    with Client("http", server.addresses["http"]) as client:
        for number in range(40):
            infer(client, number)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    found = captured(tmp_path, "echo")
    assert len(found) == 10
    assert all(line["responses"][0]["outputs"][0]["is_redacted"] for line in found)


def test_a_folder_that_is_gone_costs_no_request(serve: Callable[..., ServerProcess], tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    server = serve(folder, "--capture-share=1")
    with Client("http", server.addresses["http"]) as client:
        infer(client, 1)
        assert eventually(lambda: len(captured(folder, "echo")) == 1)
        folder.rename(tmp_path / "elsewhere")
        folder.write_text("a file")
        assert infer(client, 2) == [2]
        assert eventually(lambda: metric(server, "trioton_capture_dropped_total", reason="write") == 1)
        assert infer(client, 3) == [3]
    assert "1 captured requests are lost: " in server.log


def test_a_bucket(store: Store, serve: Callable[..., ServerProcess]) -> None:
    server = serve(f"{store.url}/captures", "--capture-share=1")
    with Client("http", server.addresses["http"]) as client:
        infer(client, 1)
    assert eventually(lambda: len(store.keys("captures/echo")) == 1)
    [line] = bytes(obstore.get(store.client, store.keys("captures/echo")[0]).bytes()).splitlines()
    assert data(json.loads(line)["request"]["inputs"]) == {"IN": [1]}


def test_a_place_that_is_none_keeps_the_server_from_starting(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with ServerProcess(f"--capture={tmp_path / 'file'}", repository=repository) as server:
        assert server.wait() != 0
        assert "see --capture" in server.log
