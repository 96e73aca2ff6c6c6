"""A server that is killed in the middle of a load or a reload: nothing of it is left, and the next one serves."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from repository.json_form import to_json_form
from repository.pbtxt import parse_pbtxt
from tests.backends.python.processes import shared_memory_files
from tests.e2e.client import Client
from tests.e2e.generations import PYTHON_CONFIG, ask, python_model, waits_for, write_onnx, write_python
from tests.e2e.server_process import ServerProcess, eventually, is_running

EXPLICIT = "--model-control-mode=explicit"


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the servers of a test put what is temporary."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def serve(tmp_path: Path, temporary: Path) -> Callable[..., ServerProcess]:
    def start(*flags: str) -> ServerProcess:
        return ServerProcess(*flags, repository=tmp_path / "models", environment={"TMPDIR": str(temporary)})

    return start


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def left(temporary: Path) -> list[str]:
    """Of this server; onnxruntime leaves a file of its own."""
    return [name for name in files(temporary) if "trioton" in name]


def kill(server: ServerProcess) -> None:
    """As the kernel does where memory is short; whatever the server has started ends with it."""
    family = server.descendants()
    assert family, "a worker loads the model"
    server.signal(signal.SIGKILL)
    server.wait()
    assert eventually(lambda: not any(map(is_running, family)))
    assert shared_memory_files(*family) == set()


def start_load(server: ServerProcess, name: str, **more: object) -> threading.Thread:
    """A load call by a client that then loses its server."""

    def load() -> None:
        with Client("http", server.addresses["http"]) as client:
            try:
                client.raw.load_model(name, **more)
            except Exception:  # the server is killed under it
                return

    thread = threading.Thread(target=load)
    thread.start()
    return thread


def test_killed_while_it_loads(tmp_path: Path, temporary: Path, serve: Callable[..., ServerProcess]) -> None:
    gate = tmp_path / "gate"
    write_python(tmp_path / "models" / "m", 1, initialize=waits_for(gate))
    before = files(tmp_path / "models")
    with serve(EXPLICIT) as server:
        loading = start_load(server, "m")
        assert eventually(Path(f"{gate}.begun").exists)
        kill(server)
        loading.join()
    gate.touch()
    with serve(EXPLICIT, "--load-model=m") as server, Client("grpc", server.addresses["grpc"]) as client:
        assert ask(client, "m", 7)[0] == 1
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert files(tmp_path / "models") == before
    assert left(temporary) == []


def test_killed_while_it_reloads(tmp_path: Path, temporary: Path, serve: Callable[..., ServerProcess]) -> None:
    """The reload's files came with the call: the next server starts from the repository and clears them away."""
    gate = tmp_path / "gate"
    write_onnx(tmp_path / "models" / "m", 1)
    before = files(tmp_path / "models")
    text = python_model(2, initialize=waits_for(gate))
    config = json.dumps(to_json_form(parse_pbtxt(f'name: "m" {PYTHON_CONFIG}', source="test")))
    with serve(EXPLICIT, "--load-model=m") as server:
        with Client("grpc", server.addresses["grpc"]) as other:
            brought = {"file:1/model.py": text.encode()}
            loading = start_load(server, "m", config=config, files=brought)
            assert eventually(Path(f"{gate}.begun").exists)
            assert ask(other, "m", 7)[0] == 1
        assert any(name.endswith("model.py") for name in left(temporary))
        kill(server)
        loading.join()
    with serve(EXPLICIT, "--load-model=m") as server, Client("http", server.addresses["http"]) as other:
        assert ask(other, "m", 7)[0] == 1
        assert [entry["state"] for entry in other.raw.get_model_repository_index()] == ["READY"]
        assert left(temporary) == []
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert files(tmp_path / "models") == before
    assert left(temporary) == []


def test_killed_while_it_polls(tmp_path: Path, temporary: Path, serve: Callable[..., ServerProcess]) -> None:
    """In the middle of a reload, while another model is copied: the next server serves what is whole, then the rest."""
    gate = tmp_path / "gate"
    models = tmp_path / "models"
    flags = ("--model-control-mode=poll", "--repository-poll-secs=0.1", "--exit-on-error=false")
    write_python(models / "m", 1)
    with serve(*flags) as server:
        assert server.addresses
        write_python(models / "m", 2, initialize=waits_for(gate))
        assert eventually(Path(f"{gate}.begun").exists)
        (models / "half" / "1").mkdir(parents=True)
        (models / "half" / "config.pbtxt").write_text(PYTHON_CONFIG)
        kill(server)
    gate.touch()
    with serve(*flags) as server, Client("http", server.addresses["http"]) as client:
        assert ask(client, "m", 7)[0] == 2
        assert client.is_ready("half") is False
        write_python(models / "half", 3)
        assert eventually(lambda: client.is_ready("half"))
        assert ask(client, "half", 7)[0] == 3
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert left(temporary) == []
