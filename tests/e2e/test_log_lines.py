"""Lines of requests in the server's log: their tags, in every format, whoever writes them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import ServerProcess, eventually

MODEL = """
import logging, os, sys
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        print("initialized")

    def execute(self, requests):
        pb_utils.Logger.log_info("by Logger")
        logging.getLogger("mine").warning("by logging")
        print("by print")
        sys.stderr.write("half a line, ")
        sys.stderr.write("and its end\\n")
        os.system("echo by another program")
        if pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy().flat[0] < 0:
            raise ValueError("negative")
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""
KEYS = '[keys.alice]\nkey = "0123456789abcdef"\nallow = ["inference", "settings", "metadata"]\n'
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {
    "authorization": "Bearer 0123456789abcdef",
    "x-request-id": "mine",
    "traceparent": f"00-{TRACE}-{SPAN}-01",
}
WRITTEN = ("by Logger", "by logging", "by print", "half a line, and its end", "by another program")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("log_lines")
    (folder / "models" / "say" / "1").mkdir(parents=True)
    (folder / "models" / "say" / "1" / "model.py").write_text(MODEL)
    (folder / "models" / "say" / "config.pbtxt").write_text(CONFIG)
    (folder / "keys.toml").write_text(KEYS)
    flags = ("--log-format=json", "--id=here", f"--auth-keys-file={folder / 'keys.toml'}")
    with ServerProcess(*flags, repository=folder / "models") as process:
        assert len(process.addresses) == 3
        yield process


def infer(server: ServerProcess, value: float, **headers: str) -> httpx.Response:
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [value]}]}
    url = f"http://{server.addresses['http']}/v2/models/say/infer"
    return httpx.post(url, json=body, headers={**HEADERS, **headers})


def change(server: ServerProcess, log_format: str) -> None:
    answer = httpx.post(
        f"http://{server.addresses['http']}/v2/logging", json={"log_format": log_format}, headers=HEADERS
    )
    assert answer.json()["log_format"] == log_format


def objects(server: ServerProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]


def test_opentelemetry(server: ServerProcess) -> None:
    change(server, "json")
    assert infer(server, 1).status_code == 200
    assert infer(server, -1).status_code == 500
    server.wait_for_line("HTTP infer failed")
    server.wait_for_line("by another program")
    found = {each["Body"]: each for each in objects(server) if "Body" in each}
    tags = {"request_id": "mine", "key": "alice", "model": "say", "version": "1", "instance": "say_0"}
    for text in WRITTEN:
        attributes = found[text]["Attributes"]
        assert {name: attributes.get(name) for name in tags} == tags
        assert (found[text]["TraceId"], found[text]["SpanId"]) == (TRACE, SPAN)
        assert found[text]["Resource"]["service.name"] == "here"
    assert found["by logging"]["SeverityText"] == "WARN"
    assert found["by logging"]["Attributes"]["code.file.path"].endswith("/say/1/model.py")
    (traceback,) = [each for text, each in found.items() if text.endswith("ValueError: negative")]
    assert traceback["Attributes"]["request_id"] == "mine"
    (failed,) = [each for text, each in found.items() if text.startswith("HTTP infer failed")]
    assert {name: failed["Attributes"].get(name) for name in ("request_id", "key", "model")} == {
        "request_id": "mine",
        "key": "alice",
        "model": "say",
    }
    attributes = found["initialized"]["Attributes"]
    assert (attributes["model"], attributes["instance"]) == ("say", "say_0")
    assert "request_id" not in attributes
    assert "0123456789abcdef" not in server.log


def test_elastic(server: ServerProcess) -> None:
    change(server, "ecs")
    assert infer(server, 1, **{"x-request-id": "elastic"}).status_code == 200
    server.wait_for_line(r'"message":"half a line, and its end".*"id":"elastic"')
    server.wait_for_line(r'"message":"by another program".*"id":"elastic"')
    found = {each["message"]: each for each in objects(server) if "message" in each}
    for text in WRITTEN:
        assert found[text]["http"]["request"]["id"] == "elastic"
        assert found[text]["trace"]["id"] == TRACE
        assert found[text]["user"] == {"name": "alice"}
        assert found[text]["labels"] == {"model": "say", "version": "1", "instance": "say_0"}


def test_text(server: ServerProcess) -> None:
    change(server, "default")
    assert infer(server, 1, **{"x-request-id": "texts"}).status_code == 200
    tags = f"request_id=texts trace_id={TRACE} span_id={SPAN} key=alice model=say version=1 instance=say_0"
    for text in WRITTEN:
        server.wait_for_line(rf'^[IW]\d{{4}} [^\]]*\] "say_0: {text}" {tags}( logger=mine)?$')


def test_a_file_is_rotated(tmp_path: Path, server: ServerProcess) -> None:
    """Lines that come after a move are in the new file, and those before in the old one."""
    (tmp_path / "models").mkdir()
    file = tmp_path / "server.log"
    with ServerProcess(f"--log-file={file}", "--log-format=json", repository=tmp_path / "models") as process:
        assert eventually(lambda: file.exists() and "Started Metrics" in file.read_text())
        file.rename(tmp_path / "server.log.1")
        process.signal(signal.SIGUSR1)
        assert eventually(file.exists)
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "Signal (15) received" in file.read_text()
        assert "Started Metrics" in (tmp_path / "server.log.1").read_text()
