"""Models whose answers tell which files they were loaded from, and clients that ask them without a pause."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.e2e.client import Client
from tests.e2e.repository import save

INSTANCES = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
TENSORS = (
    'max_batch_size: 4\ndynamic_batching { }\ninput [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ]\n'
    'output [ { name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] } ]\n'
)
PYTHON_CONFIG = f'backend: "python"\n{TENSORS}{INSTANCES}'
# OUT = IN + generation * STRIDE, exactly.
STRIDE = 1_000_000

PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each + {added})]) for each in inputs]
"""


def write_onnx(model: Path, generation: int, *, version: int = 1, config: str = "") -> None:
    """OUT = IN + generation * STRIDE. The file appears in one step."""
    place = model / str(version)
    place.mkdir(parents=True, exist_ok=True)
    constant = numpy_helper.from_array(np.array(generation * STRIDE, np.int64), "added")
    node = helper.make_node("Constant", [], ["added"], value=constant)
    add = helper.make_node("Add", ["IN", "added"], ["OUT"])
    tensors = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", 1]) for name in ("IN", "OUT")]
    save([node, add], tensors[:1], tensors[1:], place / ".new")
    os.replace(place / ".new", place / "model.onnx")
    write_config(model, f'backend: "onnxruntime"\n{TENSORS}{INSTANCES}{config}')


def python_model(generation: int, *, initialize: str = "pass") -> str:
    return PYTHON.format(added=generation * STRIDE, initialize=initialize)


def waits_for(gate: Path) -> str:
    """An `initialize` that says that it has begun, by `<gate>.begun`, and ends when the gate is there."""
    return (
        f"import pathlib, time; pathlib.Path({f'{gate}.begun'!r}).touch()\n"
        f"        while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)"
    )


def write_python(model: Path, generation: int, *, initialize: str = "pass") -> None:
    """As `write_onnx`, in a worker process."""
    place = model / "1"
    place.mkdir(parents=True, exist_ok=True)
    (place / ".new").write_text(python_model(generation, initialize=initialize))
    os.replace(place / ".new", place / "model.py")
    write_config(model, PYTHON_CONFIG)


def write_config(model: Path, text: str) -> None:
    if not (model / "config.pbtxt").exists() or (model / "config.pbtxt").read_text() != text:
        (model / ".config").write_text(text)
        os.replace(model / ".config", model / "config.pbtxt")


def ask(client: Client, model: str, value: int) -> tuple[int, str]:
    """The generation that has answered, and its version. The answer belongs to the question, or this raises."""
    inputs = client.tensors({"IN": np.array([[value]], np.int64)})
    result = client.raw.infer(model, inputs)
    generation, rest = divmod(int(result.as_numpy("OUT")[0, 0]), STRIDE)
    assert rest == value, f"asked for {value}, got {rest}"
    response = result.get_response()
    return generation, response["model_version"] if isinstance(response, dict) else response.model_version


@dataclass
class Load:
    """Clients that ask a model all the time, each in a thread with a connection of its own. Generations count up: what
    is answered may be none before the one `done` when the request was sent, and none after the one `begun` when its
    answer came."""

    model: str
    addresses: dict[str, str]
    clients_each: int = 2
    done: int = 0
    begun: int = 0
    answered: dict[str, int] = field(default_factory=lambda: {"http": 0, "grpc": 0})
    failures: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def __enter__(self) -> Load:
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(protocol, 1 + number * 100_000))
            for number, protocol in enumerate(["http", "grpc"] * self.clients_each)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, protocol: str, value: int) -> None:
        with Client(protocol, self.addresses[protocol]) as client:
            while not self._is_over.is_set():
                value += 1
                earliest = self.done
                try:
                    generation, _ = ask(client, self.model, value)
                    latest = self.begun
                    assert earliest <= generation <= latest, f"{earliest} to {latest} were valid, got {generation}"
                except Exception as error:  # each one counts
                    with self._lock:
                        self.failures.append(f"{protocol}, generation {self.begun}: {error}")
                else:
                    with self._lock:
                        self.answered[protocol] += 1
                        self.seen.add(generation)
