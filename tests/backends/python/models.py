"""Python models for the tests, and the backends that run them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import trio
from numpy.typing import NDArray

from backends.interface import STARTED, BatchResult, InstanceSpec, ModelSource
from backends.python import PythonBackend
from protocol.datatypes import DataType, from_numpy_dtype
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse, ParameterValue, Tensor
from protocol.tensors.shared_tensor import SharedTensor, shared_tensor
from repository.model_config import (
    InstanceKind,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelParameter,
    ModelTransactionPolicy,
)

CONFIG = ModelConfig(
    name="m",
    backend="python",
    max_batch_size=8,
    input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,)),),
    output=(ModelOutput(name="OUT", data_type=DataType.FP32, dims=(-1,)),),
    default_model_filename="model.py",
)

DECOUPLED = msgspec.structs.replace(CONFIG, model_transaction_policy=ModelTransactionPolicy(decoupled=True))

# A model whose `execute` has the body given; `answer(array)` makes a response of one tensor.
_EXECUTE = """
import os, signal, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def answer(array, name="OUT"):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array)])

class TritonPythonModel:
    def execute(self, requests):
{body}
"""

IDENTITY = "return [answer(r.inputs()[0].as_numpy()) for r in requests]"


def executing(body: str) -> str:
    """The text of a model that has this `execute`."""
    return _EXECUTE.format(body=textwrap.indent(textwrap.dedent(body).strip(), " " * 8))


def write_model(directory: Path, text: str, *, version: int = 1, files: Mapping[str, str] | None = None) -> Path:
    """Write `model.py`, and `files` by their stems, into a version of the model directory."""
    folder = directory / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    for stem, content in {"model": text, **(files or {})}.items():
        (folder / f"{stem}.py").write_text(textwrap.dedent(content))
    return folder


def model_source(
    directory: Path,
    text: str,
    *,
    config: ModelConfig = CONFIG,
    settings: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> ModelSource:
    write_model(directory, text, files=files)
    return ModelSource(config.name, 1, directory, config, dict(settings or {}))


def backend(
    directory: Path,
    text: str,
    *,
    config: ModelConfig = CONFIG,
    settings: Mapping[str, str] | None = None,
    kind: InstanceKind = InstanceKind.CPU,
    device_id: int = 0,
    files: Mapping[str, str] | None = None,
    isolation: str = "process",
) -> PythonBackend:
    if isolation != "process":
        settings = {"allow-in-process": "true", **(settings or {})}
        options = {**config.parameters, **parameters(ISOLATION=isolation)}
        config = msgspec.structs.replace(config, parameters=options)
    source = model_source(directory, text, config=config, settings=settings, files=files)
    return PythonBackend(InstanceSpec(source, "m_0", kind, device_id))


class MakeBackend(Protocol):
    """As `backend`, of which it is a form."""

    def __call__(
        self,
        directory: Path,
        text: str,
        *,
        config: ModelConfig = ...,
        settings: Mapping[str, str] | None = ...,
        kind: InstanceKind = ...,
        device_id: int = ...,
        files: Mapping[str, str] | None = ...,
    ) -> PythonBackend: ...


def parameters(**values: str) -> dict[str, ModelParameter]:
    return {key: ModelParameter(string_value=value) for key, value in values.items()}


async def attending(instance: PythonBackend, *, task_status: trio.TaskStatus[None]) -> None:
    """What a model instance actor does beside running batches."""
    await instance.attend(task_status=task_status)


@asynccontextmanager
async def running(instance: PythonBackend) -> AsyncIterator[PythonBackend]:
    """Loaded and watched, as a model instance actor does it; unloaded afterwards."""
    await instance.load()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(attending, instance)
            yield instance
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await instance.unload()


class ClientMemory:
    """A client's shared memory that holds an array. Implements `protocol.tensors.shared_tensor.SharedBytes`."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.byte_size = array.nbytes

    def read(self) -> bytes:
        return self._array.tobytes()

    def read_into(self, memory: memoryview) -> None:
        memory[:] = self.read()

    @classmethod
    def tensor(cls, name: str, array: NDArray[Any]) -> SharedTensor:
        datatype = from_numpy_dtype(array.dtype)
        assert datatype is not None
        return shared_tensor(name, datatype, array.shape, cls(array))


def request(
    array: NDArray[Any] | Sequence[float] = (1.0, 2.0),
    *,
    name: str = "IN",
    id: str = "",
    outputs: tuple[str, ...] = (),
    parameters: dict[str, ParameterValue] | None = None,
) -> InferenceRequest:
    if not isinstance(array, np.ndarray):
        array = np.array([array], dtype=np.float32)
    return InferenceRequest(
        "m", [Tensor.from_numpy(name, array)], id=id, requested_outputs=outputs, parameters=parameters or {}
    )


def output(response: InferenceResponse | ServerError, index: int = 0) -> NDArray[Any]:
    assert isinstance(response, InferenceResponse), response
    return response.outputs[index].as_numpy()


@dataclass(eq=False)
class Receiver:
    """A responder that keeps what it gets. `room` is how many responses it takes before it makes its sender wait."""

    responses: list[InferenceResponse] = field(default_factory=list)
    error: ServerError | None = None
    is_cancelled: bool = False
    room: float = math.inf
    ended: trio.Event = field(default_factory=trio.Event)
    changed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    async def send(self, response: InferenceResponse) -> None:
        while not self.send_nowait(response):
            await self.changed.park()

    def send_nowait(self, response: InferenceResponse) -> bool:
        if len(self.responses) >= self.room:
            return False
        self.responses.append(response)
        self.changed.unpark_all()
        if response.is_final:
            self.close()
        return True

    def close(self, error: ServerError | None = None) -> None:
        if not self.ended.is_set():
            self.error = error
            self.ended.set()

    def make_room(self, room: float = math.inf) -> None:
        self.room = room
        self.changed.unpark_all()

    async def wait_count(self, count: int) -> None:
        while len(self.responses) < count:
            await self.changed.park()


async def stream(instance: PythonBackend, *requests: InferenceRequest) -> list[Receiver]:
    """One batch of a decoupled model, until all of its requests have ended."""
    receivers = [Receiver() for _ in requests]
    await instance.execute_decoupled(requests, receivers)
    for receiver in receivers:
        await receiver.ended.wait()
    return receivers


def answers(receiver: Receiver) -> list[Any]:
    """The only element of each response's only output; nothing for an empty one."""
    return [output(response).item() for response in receiver.responses if response.outputs]


async def infer(instance: PythonBackend, *requests: InferenceRequest) -> list[InferenceResponse | ServerError]:
    """One batch, as a model instance actor has it run: begun by a call where that is possible."""
    ended = trio.Event()
    results: list[BatchResult | Exception] = []

    def done(result: BatchResult | Exception) -> None:
        results.append(result)
        ended.set()

    result: BatchResult | Exception
    begun = instance.begin(requests, done)
    assert not results, "ended before it had begun"
    if begun is STARTED:
        await ended.wait()
        [result] = results
    else:
        result = begun or await instance.execute(requests)
    if isinstance(result, Exception):
        raise result
    return list(result.responses)
