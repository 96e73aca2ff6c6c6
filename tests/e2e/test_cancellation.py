"""Clients that go away, over both protocols: wherever their request is, it stops, and a batch that runs is told."""

from __future__ import annotations

import http.client
import json
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from tritonclient.utils import InferenceServerException

from tests.backends.onnxruntime.onnx_models import counting
from tests.backends.onnxruntime.onnx_models import save as save_onnx
from tests.e2e.client import Array, Client, status_of, tensors
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_metrics import values
from trioton.server import open_server
from trioton.settings import Settings

PATIENCE = 30
# What the clients grant whose time runs out. Long enough for the request to be where it is to be, or nearly so.
SHORT_SECONDS = 0.5

WATCHING = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

def path(request):
    return request.inputs()[0].as_numpy().reshape(-1)[0].decode()

class TritonPythonModel:
    '''Each request names a file. It makes <file>.seen, and is done when the file is there, or when its caller has gone;
    then it makes <file>.gone.'''

    def execute(self, requests):
        for request in requests:
            open(path(request) + ".seen", "w").close()
        left = set(range(len(requests)))
        while left:
            for index in list(left):
                if os.path.exists(path(requests[index])):
                    left.discard(index)
                elif requests[index].is_cancelled():
                    open(path(requests[index]) + ".gone", "w").close()
                    left.discard(index)
            time.sleep(0.005)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("SAID", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""
STREAMING = """
import os, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    '''Replies again and again, until the file that the request names is there, or its caller has gone.'''

    def execute(self, requests):
        for request in requests:
            path = request.inputs()[0].as_numpy().reshape(-1)[0].decode()
            sender = request.get_response_sender()
            while not os.path.exists(path) and not sender.is_cancelled():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", request.inputs()[0].as_numpy())]))
                time.sleep(0.005)
            if sender.is_cancelled() and request.is_cancelled():
                open(path + ".gone", "w").close()
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TENSORS = """
input [ { name: "FILE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
ONE = 'backend: "python"\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n' + TENSORS
CONFIGS = {
    "watching": ONE,
    # A batch goes when two requests are together; the delay is far longer than any test.
    "in_twos": ONE + "max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 600000000 }",
    "one_slot": ONE + "sequence_batching { max_sequence_idle_microseconds: 600000000 }",
    "streaming": ONE + "model_transaction_policy { decoupled: true }",
    "ensemble": 'platform: "ensemble"'
    + TENSORS
    + """ensemble_scheduling { step { model_name: "watching" model_version: -1
      input_map { key: "FILE" value: "FILE" } output_map { key: "SAID" value: "SAID" } } }""",
}
COUNTING = """
backend: "onnxruntime" max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "N" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


def add_models(repository: Path, *names: str) -> None:
    for name in names:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIGS[name])
        if name != "ensemble":
            code = STREAMING if name == "streaming" else WATCHING
            (repository / name / "1" / "model.py").write_text(code)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("watched")
    add_models(repository, *CONFIGS)
    save_onnx(counting(), repository / "counting")
    (repository / "counting" / "config.pbtxt").write_text(COUNTING)
    with ServerProcess(repository=repository) as process:
        yield process


@pytest.fixture
def anybody(watched: ServerProcess) -> Iterator[Client]:
    """For any thread, which tritonclient's HTTP client is not."""
    with Client("grpc", watched.addresses["grpc"]) as made:
        yield made


def file_inputs(path: Path, model: str = "watching") -> dict[str, Array]:
    rows = np.array([str(path).encode()], np.object_)
    return {"FILE": rows.reshape(1, 1) if model == "in_twos" else rows}


# Begins a request, and gives what makes its client go away. Where a time limit does that, it waits for the error.
Way = Callable[..., Callable[[], None]]


def http_disconnect(server: ServerProcess, model: str, inputs: dict[str, Array], **parameters: Any) -> Any:
    return _over_http(server, model, inputs, **parameters).close


def http_timeout(server: ServerProcess, model: str, inputs: dict[str, Array], **parameters: Any) -> Any:
    connection = _over_http(server, model, inputs, timeout=int(SHORT_SECONDS * 1e6), **parameters)

    def go() -> None:
        response = connection.getresponse()
        assert response.status == 504
        assert "microseconds expired" in json.load(response)["error"]
        connection.close()

    return go


def _over_http(
    server: ServerProcess, model: str, inputs: dict[str, Array], **parameters: Any
) -> http.client.HTTPConnection:
    host, _, port = server.addresses["http"].rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    body = {"parameters": parameters, "inputs": [_as_json(name, array) for name, array in inputs.items()]}
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
    return connection


def grpc_cancel(server: ServerProcess, model: str, inputs: dict[str, Array], **more: Any) -> Any:
    call, client, _ = _over_grpc(server, model, inputs, **more)

    def go() -> None:
        call.cancel()
        client.raw.close()

    return go


def grpc_deadline(server: ServerProcess, model: str, inputs: dict[str, Array], **more: Any) -> Any:
    return _until_deadline(server, model, inputs, client_timeout=SHORT_SECONDS, **more)


def grpc_timeout(server: ServerProcess, model: str, inputs: dict[str, Array], **more: Any) -> Any:
    return _until_deadline(server, model, inputs, timeout=int(SHORT_SECONDS * 1e6), **more)


def _until_deadline(server: ServerProcess, model: str, inputs: dict[str, Array], **more: Any) -> Any:
    _, client, errors = _over_grpc(server, model, inputs, **more)

    def go() -> None:
        assert status_of(errors.get(timeout=PATIENCE)) == "DEADLINE_EXCEEDED"
        client.raw.close()

    return go


def _over_grpc(server: ServerProcess, model: str, inputs: dict[str, Array], **more: Any) -> Any:
    client = Client("grpc", server.addresses["grpc"])
    errors: queue.Queue[Any] = queue.Queue()
    call = client.raw.async_infer(model, client.tensors(inputs), lambda result, error: errors.put(error), **more)
    return call, client, errors


def _as_json(name: str, array: Array) -> dict[str, Any]:
    datatype = {"object": "BYTES", "float32": "FP32", "int64": "INT64"}[str(array.dtype)]
    data = [each.decode() if isinstance(each, bytes) else each for each in array.reshape(-1).tolist()]
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": data}


BY_WILL: list[Way] = [http_disconnect, grpc_cancel]
BY_TIME: list[Way] = [grpc_deadline, http_timeout, grpc_timeout]
any_way = pytest.mark.parametrize("way", [*BY_WILL, *BY_TIME], ids=lambda way: str(way.__name__))


def cancelled(server: ServerProcess, model: str) -> float:
    return values(server, model, reason="CANCELED")["nv_inference_request_failure"]


def succeeded(server: ServerProcess, model: str) -> float:
    return values(server, model)["nv_inference_request_success"]


def pending(server: ServerProcess, model: str) -> float:
    return values(server, model)["nv_inference_pending_request_count"]


@any_way
@pytest.mark.parametrize("model", ["watching", "ensemble"])
def test_a_model_that_runs_is_told(
    watched: ServerProcess, anybody: Client, way: Way, model: str, tmp_path: Path
) -> None:
    """Also in a step of an ensemble, where both count it; the instance takes the next request."""
    file, other = tmp_path / "file", tmp_path / "other"
    other.touch()
    before = {name: cancelled(watched, name) for name in (model, "watching")}
    go = way(watched, model, file_inputs(file))
    assert eventually(Path(f"{file}.seen").exists)
    go()
    assert eventually(Path(f"{file}.gone").exists)
    assert anybody.infer("watching", file_inputs(other))["SAID"][0] == str(other).encode()
    assert eventually(lambda: all(cancelled(watched, name) == count + 1 for name, count in before.items()))


@any_way
def test_a_request_in_the_queue_never_runs(watched: ServerProcess, way: Way, tmp_path: Path) -> None:
    runs, waits = tmp_path / "runs", tmp_path / "waits"
    before, answered = cancelled(watched, "watching"), succeeded(watched, "watching")
    finish = grpc_cancel(watched, "watching", file_inputs(runs))
    assert eventually(Path(f"{runs}.seen").exists)
    go = way(watched, "watching", file_inputs(waits))
    if way in BY_WILL:
        assert eventually(lambda: pending(watched, "watching") == 1)
    go()
    assert eventually(lambda: cancelled(watched, "watching") == before + 1)
    assert pending(watched, "watching") == 0
    runs.touch()
    assert eventually(lambda: succeeded(watched, "watching") == answered + 1)
    finish()
    assert not Path(f"{waits}.seen").exists()


@any_way
def test_a_request_leaves_the_batch_that_forms(watched: ServerProcess, way: Way, tmp_path: Path) -> None:
    """A batch would go with two requests, and the delay is long: after it has gone, there is none."""
    file = tmp_path / "file"
    before = cancelled(watched, "in_twos")
    go = way(watched, "in_twos", file_inputs(file, "in_twos"))
    if way in BY_WILL:
        assert eventually(lambda: pending(watched, "in_twos") == 1)
    go()
    assert eventually(lambda: cancelled(watched, "in_twos") == before + 1)
    assert pending(watched, "in_twos") == 0
    assert not Path(f"{file}.seen").exists()


@any_way
def test_one_request_of_a_running_batch(watched: ServerProcess, anybody: Client, way: Way, tmp_path: Path) -> None:
    """The model knows which one; the other one is answered."""
    gone, stays = tmp_path / "gone", tmp_path / "stays"
    answers: queue.Queue[Any] = queue.Queue()
    asking = threading.Thread(
        target=lambda: answers.put(anybody.infer("in_twos", file_inputs(stays, "in_twos"))), daemon=True
    )
    asking.start()
    go = way(watched, "in_twos", file_inputs(gone, "in_twos"))
    assert eventually(Path(f"{gone}.seen").exists)
    go()
    assert eventually(Path(f"{gone}.gone").exists)
    assert not Path(f"{stays}.gone").exists()
    stays.touch()
    assert answers.get(timeout=PATIENCE)["SAID"][0, 0] == str(stays).encode()
    asking.join(PATIENCE)


@pytest.mark.parametrize("way", [*BY_WILL, grpc_deadline], ids=lambda way: str(way.__name__))
def test_a_sequences_step_is_told_and_its_slot_is_free(
    watched: ServerProcess, anybody: Client, way: Way, tmp_path: Path
) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    other.touch()
    before = cancelled(watched, "one_slot")
    go = way(watched, "one_slot", file_inputs(file), sequence_id=7, sequence_start=True)
    assert eventually(Path(f"{file}.seen").exists)
    go()
    assert eventually(Path(f"{file}.gone").exists)
    anybody.infer("one_slot", file_inputs(other), sequence_id=8, sequence_start=True, sequence_end=True)
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        anybody.infer("one_slot", file_inputs(other), sequence_id=7)
    assert cancelled(watched, "one_slot") == before + 1


def test_a_decoupled_model_is_told(watched: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "file"
    client = Client("grpc", watched.addresses["grpc"])
    answers: queue.Queue[Any] = queue.Queue()
    client.raw.start_stream(lambda result, error: answers.put(result))
    client.raw.async_stream_infer("streaming", tensors(client.api, file_inputs(file)))
    assert answers.get(timeout=PATIENCE) is not None
    client.raw.stop_stream(cancel_requests=True)
    client.raw.close()
    assert eventually(Path(f"{file}.gone").exists)
    assert eventually(lambda: cancelled(watched, "streaming") == 1)


@any_way
def test_onnxruntime_ends_a_run_for_nobody(watched: ServerProcess, anybody: Client, way: Way) -> None:
    """The run would take years; its only instance answers the next request."""

    def rounds(number: int) -> dict[str, Array]:
        return {"X": np.zeros((1, 1), np.float32), "N": np.array([[number]], np.int64)}

    def ask() -> queue.Queue[Any]:
        answers: queue.Queue[Any] = queue.Queue()
        inputs = anybody.tensors(rounds(3))
        anybody.raw.async_infer("counting", inputs, lambda result, error: answers.put(result or error))
        return answers

    def waits() -> bool:
        """Whether a request waits behind the long one. It is answered if it has come before that."""
        asked.append(ask())
        try:
            asked[-1].get(timeout=SHORT_SECONDS / 2)
        except queue.Empty:
            return pending(watched, "counting") > 0
        return False

    asked: list[queue.Queue[Any]] = []
    before = cancelled(watched, "counting")
    go = way(watched, "counting", rounds(10**15))
    if way in BY_WILL:
        assert eventually(waits)
    go()
    answer = (asked[-1] if asked else ask()).get(timeout=PATIENCE)
    assert answer.as_numpy("Y").tolist() == [[3.0]]
    assert eventually(lambda: cancelled(watched, "counting") == before + 1)


async def test_cancel_by_id(tmp_path: Path) -> None:
    """By the program that holds the server: the model is told, and the client gets an error that says so."""
    add_models(tmp_path, "watching")
    file = tmp_path / "file"
    address = {"http_address": "127.0.0.1", "grpc_address": "127.0.0.1", "http_port": 0, "grpc_port": 0}
    settings = Settings(model_repository=(tmp_path,), allow_metrics=False, **address)  # type: ignore[arg-type]
    errors: list[str] = []
    async with open_server(settings) as server:
        host, port = server.addresses["grpc"]

        def ask() -> None:
            with Client("grpc", f"{host}:{port}") as client, pytest.raises(InferenceServerException) as raised:
                client.infer("watching", file_inputs(file), request_id="mine")
            errors.append(str(raised.value))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, ask)
            await trio.to_thread.run_sync(eventually, Path(f"{file}.seen").exists)
            assert server.core.cancel("watching", "other") == 0
            assert server.core.cancel("watching", "mine") == 1
        assert await trio.to_thread.run_sync(eventually, Path(f"{file}.gone").exists)
    assert "[request id: mine] request to model 'watching' was cancelled" in errors[0]
    assert "CANCELLED" in errors[0]
