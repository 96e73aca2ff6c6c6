"""`trioton run`: one model in a process of its own, changed under it while clients ask."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.client import Client
from tests.e2e.repository import add_types
from tests.e2e.server_process import ServerProcess, eventually

MODEL = """
import os
import numpy as np
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}})
        config.add_output({{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}})
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            if request.inputs()[0].as_numpy()[0]:
                print("waiting")
                while not os.path.exists(pb_utils.get_model_dir() + "/../release"):
                    time.sleep(0.01)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([{number}], np.float32))]))
        return responses
"""


def write(path: Path, text: str) -> None:
    """Whole or not at all, as editors do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.write_text(textwrap.dedent(text))
    os.replace(unfinished, path)


def model_text(number: int) -> str:
    return MODEL.format(number=number)


def ask(client: Client, model: str, *, waits: bool = False) -> float:
    """The model's number; with `waits` not before there is a file `release` beside its folder."""
    return float(client.infer(model, {"IN": np.array([waits], np.float32)})["OUT"][0])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A bare folder with a `model.py` in it."""
    write(tmp_path / "mine" / "model.py", model_text(1))
    return tmp_path / "mine"


@pytest.fixture
def server(model: Path) -> Iterator[ServerProcess]:
    with ServerProcess("--reload", model=model) as process:
        yield process


@pytest.fixture(params=["http", "grpc"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(request.param, server.addresses[request.param]) as made:
        yield made


def test_a_changed_file_is_served(client: Client, server: ServerProcess, model: Path) -> None:
    """Requests go on all the while, none is lost, and SIGTERM ends it."""
    answers: list[float] = []
    problems: list[Exception] = []
    stop = threading.Event()

    def go_on() -> None:
        with Client(client.protocol, client.address) as mine:
            while not stop.is_set():
                try:
                    answers.append(ask(mine, "mine"))
                except Exception as error:
                    problems.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        assert eventually(lambda: 1.0 in answers)
        write(model / "model.py", model_text(2))
        assert eventually(lambda: 2.0 in answers)
    finally:
        stop.set()
        thread.join()
    assert problems == []
    assert answers == sorted(answers)
    server.wait_for_line("changed: model.py; loading 'mine' again")
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_request_in_flight_ends_in_the_version_that_began_it(server: ServerProcess, model: Path) -> None:
    with Client("http", server.addresses["http"]) as client, Client("http", server.addresses["http"]) as other:
        assert ask(client, "mine") == 1
        answers: list[float] = []
        thread = threading.Thread(target=lambda: answers.append(ask(other, "mine", waits=True)))
        thread.start()
        server.wait_for_line("mine_0: waiting")
        write(model / "model.py", model_text(2))
        assert eventually(lambda: server.log.count("successfully loaded 'mine'") == 2)
        assert ask(client, "mine") == 2
        assert answers == []
        (model.parent / "release").touch()
        thread.join()
        assert answers == [1]


def test_a_broken_file_leaves_the_old_one_serving(client: Client, server: ServerProcess, model: Path) -> None:
    """Half-written, then failing in initialize, then mended: each is told."""
    assert ask(client, "mine") == 1
    write(model / "model.py", model_text(2)[:-60])
    server.wait_for_line("failed to load 'mine'.*SyntaxError")
    server.wait_for_line("'mine' goes on serving as it was before the change")
    assert ask(client, "mine") == 1
    write(
        model / "model.py", model_text(2) + "\n    def initialize(self, args):\n        raise ValueError('not yet')\n"
    )
    server.wait_for_line("failed to load 'mine'.*ValueError: not yet")
    assert ask(client, "mine") == 1
    write(model / "model.py", model_text(3))
    assert eventually(lambda: ask(client, "mine") == 3)


def test_it_may_begin_with_a_model_that_does_not_load(tmp_path: Path) -> None:
    write(tmp_path / "late" / "1" / "model.py", "import no_such_module")
    file = tmp_path / "late" / "1" / "model.py"
    with ServerProcess("--reload", model=file) as server, Client("http", server.addresses["http"]) as client:
        assert not client.is_ready("late")
        write(file, model_text(7))
        assert eventually(lambda: client.is_ready("late"))
        assert ask(client, "late") == 7


def test_a_change_of_the_configuration_and_of_a_file_beside_the_model(tmp_path: Path) -> None:
    """What the model writes while it is imported is no change."""
    write(tmp_path / "m" / "helper.py", "NUMBER = 1")
    text = "import helper\n" + model_text(0).replace("[0], np.float32", "[helper.NUMBER], np.float32")
    write(tmp_path / "m" / "model.py", text)
    with ServerProcess("--reload", model=tmp_path / "m") as server:
        with Client("http", server.addresses["http"]) as client:
            assert ask(client, "m") == 1
            write(tmp_path / "m" / "helper.py", "NUMBER = 2")
            assert eventually(lambda: ask(client, "m") == 2)
            write(tmp_path / "m" / "config.pbtxt", "instance_group [ { count: 2 } ]\n")
            server.wait_for_line("changed: config.pbtxt; loading 'm' again")
            assert eventually(lambda: len(server.workers()) == 2)
            assert ask(client, "m") == 2
        assert server.log.count("loading 'm' again") == 2


def test_without_reload_a_model_that_does_not_load_ends_it(tmp_path: Path) -> None:
    write(tmp_path / "m" / "model.py", "raise RuntimeError('no')")
    with ServerProcess(model=tmp_path / "m") as server:
        assert server.wait() == 1
        assert "RuntimeError: no" in server.log


def test_an_onnx_file_alone(tmp_path: Path) -> None:
    add_types(tmp_path / "made", ("FP32",))
    (tmp_path / "net").mkdir()
    os.replace(tmp_path / "made" / "1" / "model.onnx", tmp_path / "net" / "model.onnx")
    with ServerProcess(model=tmp_path / "net") as server, Client("http", server.addresses["http"]) as client:
        array = np.arange(3, dtype=np.float32).reshape(3, 1)
        assert client.infer("net", {"IN_FP32": array})["FP32"].tolist() == [[0], [1], [2]]
        assert client.json("get_model_repository_index") == [{"name": "net", "version": "1", "state": "READY"}]
