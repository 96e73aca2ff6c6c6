"""The start of a server: what it says, and what it does when something is wrong."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from tests.e2e.client import Client, add_sub_inputs
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import LOCAL, ServerProcess, eventually

RAISES = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("raised at start")

    def execute(self, requests):
        return []
"""
SLEEPS = """
import time

class TritonPythonModel:
    def initialize(self, args):
        time.sleep(1000)

    def execute(self, requests):
        return []
"""


def add_model(directory: Path, name: str, config: str, code: str = "") -> None:
    (directory / name / "1").mkdir(parents=True)
    (directory / name / "config.pbtxt").write_text(config)
    if code:
        (directory / name / "1" / "model.py").write_text(code)


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """One model that is right, and one for each way of being wrong."""
    add_add_sub(tmp_path / "right", versions=(1,))
    add_model(tmp_path, "syntax", 'backend: "python"\nmax_batch_size: 8\ninput [ { nam: "X" } ]\n')
    add_model(tmp_path, "unbuilt", 'backend: "python"\nruntime: "other.so"\n', RAISES)
    add_model(
        tmp_path,
        "raises",
        'backend: "python"\noutput [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]\n',
        RAISES,
    )
    return tmp_path


# The model with what its reason must hold: the line, the field, the exception.
REASONS = {"syntax": ("3:", "nam"), "unbuilt": ("runtime other than model.py",), "raises": ("raised at start",)}


def test_bad_models_leave_the_rest_serving(faulty: Path) -> None:
    """With --exit-on-error=false. Table and index say what is wrong with each; strictly, the server is not ready."""
    with ServerProcess("--exit-on-error=false", repository=faulty) as server:
        for protocol in ("http", "grpc"):
            with Client(protocol, server.addresses[protocol]) as client:
                assert client.infer("right", add_sub_inputs())["OUTPUT0"].shape == (1, 16)
                assert client.raw.is_server_live() is True
                assert client.raw.is_server_ready() is False
                told = client.json("get_model_repository_index")
                entries = {one["name"]: one for one in (told if isinstance(told, list) else told["models"])}
                assert entries["right"]["state"] == "READY"
                for name, pieces in REASONS.items():
                    assert entries[name]["state"] == "UNAVAILABLE"
                    for piece in pieces:
                        assert piece in entries[name]["reason"], entries[name]
        table = [line for line in server.log.splitlines() if line.startswith("|")]
        assert table[0].split() == ["|", "Model", "|", "Version", "|", "Status", "|"]
        for name in REASONS:
            assert any(line.startswith(f"| {name} ") and "UNAVAILABLE" in line for line in table)
        assert any(line.startswith("| right ") and "READY" in line for line in table)


@pytest.mark.parametrize(("isolation", "most"), [("in_loop", 0), ("in_process", 0), ("process", 2)])
def test_a_python_model_takes_no_process_that_it_does_not_run_in(tmp_path: Path, isolation: str, most: int) -> None:
    """Its own, where it has one, and the fork server that this comes from."""
    model = SLEEPS.replace("time.sleep(1000)", "pass")
    option = f'parameters {{ key: "ISOLATION" value {{ string_value: "{isolation}" }} }}\n'
    config = 'output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]\ninstance_group [ { kind: KIND_CPU } ]\n'
    config += 'backend: "python"\ninput [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]\n' + option
    add_model(tmp_path, "alone", config, model)
    with ServerProcess("--backend-config=python,allow-in-process=true", repository=tmp_path) as server:
        with Client("http", server.addresses["http"]) as client:
            assert client.is_ready("alone")
        assert eventually(lambda: len(server.descendants()) == most)
        assert len(server.workers()) == min(most, 1)


def test_by_default_a_bad_model_ends_the_start(faulty: Path) -> None:
    """With exit code 1, all reasons, and without having served."""
    with ServerProcess(repository=faulty) as server:
        assert server.wait() == 1
    assert "failed to load all models" in server.log
    assert "raised at start" in server.log
    assert "Started" not in server.log


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """The sentence names the service, the address and the flag."""
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        with ServerProcess(f"--http-port={port}", repository=tmp_path) as server:
            assert server.wait() == 1
    assert f"cannot listen on {LOCAL}:{port} for HTTPService: Address already in use" in server.log
    assert "--http-port" in server.log
    assert "Traceback" not in server.log


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    with ServerProcess(repository=tmp_path / "absent") as server:
        assert server.wait() == 1
    assert f"model repository '{tmp_path / 'absent'}' is not a directory" in server.log
    assert "Traceback" not in server.log


def test_several_repositories_and_log_flags(tmp_path: Path) -> None:
    """Models of both are served together; a name in both is served from neither, and the log goes to its file."""
    for name in ("one", "other"):
        add_add_sub(tmp_path / name / name, versions=(1,))
        add_add_sub(tmp_path / name / "twice", versions=(1,))
    log = tmp_path / "log"
    flags = (
        f"--model-repository={tmp_path / 'other'}",
        "--exit-on-error=false",
        "--strict-readiness=false",
        "--id=me",
        "--allow-http=false",
    )
    with ServerProcess(*flags, repository=tmp_path / "one") as server:
        address = server.wait_for_line(r'"Started GRPCInferenceService at (\S+)"').group(1)
        with Client("grpc", address) as client:
            assert client.raw.is_server_ready() is True
            assert client.json("get_server_metadata")["name"] == "me"
            for name in ("one", "other"):
                assert client.infer(name, add_sub_inputs())["OUTPUT0"].shape == (1, 16)
            assert client.is_ready("twice") is False
        assert "two or more repositories" in server.log
        assert "HTTPService" not in server.log
    with ServerProcess(f"--log-file={log}", "--log-format=ISO8601", repository=tmp_path / "one") as server:
        server_log = wait_for_text(log, "Started Metrics Service")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert server.log == ""
    assert all(line[4] == "-" for line in server_log.splitlines() if "] " in line)


def test_a_signal_while_models_load(tmp_path: Path) -> None:
    """The load is given up, and the server ends in order."""
    config = 'backend: "python"\ninput [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    config += 'output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    add_model(tmp_path, "sleeps", config, SLEEPS)
    with ServerProcess(repository=tmp_path) as server:
        server.wait_for_line("loading: sleeps")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert "Traceback" not in server.log


def wait_for_text(file: Path, text: str) -> str:
    assert eventually(lambda: file.exists() and text in file.read_text())
    return file.read_text()
