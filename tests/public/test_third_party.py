"""A backend, an agent, a cache, a test and a program of somebody else, written against the public names alone.

mypy judges this file with the others: `assert_type` holds the types that such code sees.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, assert_type

import msgspec
import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from trioton.backends import (
    ArrayBackend,
    Backend,
    BatchResult,
    BatchTiming,
    InstanceThread,
    ModelSource,
    Responder,
    Signature,
    TensorSignature,
    parse_int,
)
from trioton.caches import Cache, CacheError, read_integer
from trioton.errors import InvalidArgument, NotFound, ServerError
from trioton.messages import Buffer, DataType, InferenceRequest, InferenceResponse, Tensor
from trioton.model_config import ModelConfig, ModelInput, ModelOutput
from trioton.repository_agents import AgentModel, RepositoryAgent
from trioton.server import Address, Models, ModelStatistics, Server, Settings, StartError, open_server
from trioton.testing import Answer, AsyncModel, Model, open_model, serve_model

CONFIG = """
name: "m"
backend: "{backend}"
max_batch_size: 4
input [ {{ name: "X" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }} ]
parameters {{ key: "factor" value {{ string_value: "3" }} }}
"""
X = np.array([[2]], np.int32)


class Multiplying(ArrayBackend):
    """Arrays in, arrays out."""

    model_filename = "factor.json"

    def load_model(self) -> None:
        source = assert_type(self.spec.source, ModelSource)
        self.factor = parse_int(self.spec.config.parameter("factor", "1"), place=f"model '{source.name}': factor")

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if (inputs["X"] < 0).any():
            raise InvalidArgument(f"model '{self.spec.source.name}': input 'X' must not be negative")
        return {"Y": inputs["X"] * np.int32(self.factor)}

    @classmethod
    def signature(cls, source: ModelSource) -> Signature:
        tensor = TensorSignature("X", DataType.INT32, (-1, 1))
        assert_type(tensor.can_batch, bool)
        return [tensor], [TensorSignature("Y", DataType.INT32, (-1, 1))]


def add(one: int, other: int) -> int:
    """What blocks."""
    return one + other


class Counting(Backend):
    """The whole interface: a thread of its own, and several responses to a request."""

    can_be_decoupled = True

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        x = ModelInput(name="X", data_type=DataType.INT32, dims=(1,))
        y = ModelOutput(name="Y", data_type=DataType.INT32, dims=(1,))
        return msgspec.structs.replace(source.config, input=(x,), output=(y,))

    async def load(self) -> None:
        self.thread = InstanceThread(self.spec.name, self.spec.cpu_cores)

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        computed = assert_type(await self.thread.run(add, 1, 2), int)
        responses = [self.response(request, computed, is_final=True) for request in requests]
        return BatchResult(responses, BatchTiming(0, 0, 0))

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        for request, responder in zip(requests, responders, strict=True):
            (tensor,) = request.inputs
            for number in range(int(tensor.as_numpy().item())):
                assert_type(responder.is_cancelled, bool)
                await responder.send(self.response(request, number, is_final=False))
            responder.close()
        return BatchTiming(compute_input_ns=0, compute_infer_ns=0, compute_output_ns=0)

    async def unload(self) -> None:
        await self.thread.aclose()

    def response(self, request: InferenceRequest, number: int, *, is_final: bool) -> InferenceResponse:
        output = Tensor.from_numpy("Y", np.array([[number]], np.int32))
        assert_type(output.data, Buffer)
        version = self.spec.source.version
        return InferenceResponse(request.model_name, version, [output], request.id, is_final=is_final)


class Moving(RepositoryAgent):
    """Gives another folder, and takes it away again."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        super().__init__(parameters)
        if "to" not in parameters:
            raise ValueError("parameter 'to' is required")

    def load(self, model: AgentModel) -> Path:
        assert_type(model.config, ModelConfig)
        return assert_type(model.directory, Path).parent / self.parameters["to"]


class Remembering(Cache):
    """Keeps values in a dictionary."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        given = dict(settings)
        self.most = assert_type(read_integer(given, "entries", 2, minimum=1, maximum=10), int)
        super().__init__(given)
        self.values: dict[bytes, bytes] = {}

    async def look_up(self, key: bytes) -> Buffer | None:
        return self.values.get(key)

    async def insert(self, key: bytes, value: bytes) -> bool:
        if len(self.values) == self.most:
            raise CacheError("no room")
        return self.values.setdefault(key, value) is value


def write_model(folder: Path, backend: str) -> Path:
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "config.pbtxt").write_text(CONFIG.format(backend=backend))
    return folder / "m"


def test_a_backend_of_arrays(tmp_path: Path) -> None:
    """In a test that does not run on Trio, and without an installed package."""
    with serve_model(write_model(tmp_path, "multiplying"), backends={"multiplying": Multiplying}) as model:
        assert_type(model, Model)
        answer = assert_type(model.infer({"X": X}, id="one", priority=0), Answer)
        assert answer["Y"].tolist() == [[6]]
        assert (answer.request_id, answer.model_version) == ("one", 1)
        many = assert_type(model.infer_many([{"X": X}, {"X": -X}]), list[Answer | ServerError])
        assert isinstance(many[1], InvalidArgument)
        assert assert_type(model.statistics, ModelStatistics).inference_count == 2


async def test_the_whole_interface(tmp_path: Path) -> None:
    """On Trio, with a model that gives one response, and one that gives many."""
    path = write_model(tmp_path, "counting")
    async with open_model(path, backends={"counting": Counting}) as model:
        assert_type(model, AsyncModel)
        assert (await model.infer({"X": [[0]]}))["Y"].tolist() == [[3]]
    decoupled = {"model_transaction_policy": {"decoupled": True}}
    async with open_model(path, config=decoupled, backends={"counting": Counting}) as model:
        answers = assert_type(await model.stream({"X": X}), list[Answer])
        assert [answer["Y"].item() for answer in answers] == [0, 1]


def test_an_agent(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'to' is required"):
        Moving({})
    given = Moving({"to": "other"}).load(AgentModel("m", tmp_path / "m", ModelConfig(name="m")))
    assert given == tmp_path / "other"


async def test_a_cache() -> None:
    with pytest.raises(ValueError, match="unknown setting 'size'"):
        Remembering({"size": "1"})
    cache = Remembering({"entries": "1"})
    await cache.open()
    assert await cache.insert(b"key", b"value")
    assert assert_type(await cache.look_up(b"key"), Buffer | None) == b"value"
    with pytest.raises(CacheError):
        await cache.insert(b"other", b"value")
    await cache.close()


MODEL_PY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * r.inputs()[0].as_numpy())]) for r in requests]
"""


@pytest.mark.slow
async def test_a_server_inside_a_program(tmp_path: Path) -> None:
    """Its models are called in this process, beside HTTP and gRPC, and its settings may be flags."""
    (write_model(tmp_path, "python") / "1" / "model.py").write_text(MODEL_PY)
    flags = [
        f"--model-repository={tmp_path}",
        "--http-address=127.0.0.1",
        "--http-port=0",
        "--cache-config=local,size=4096",
    ]
    settings = Settings.from_flags([*flags, "--allow-grpc=false", "--allow-metrics=false"])
    async with open_server(settings) as server:
        assert_type(server, Server)
        assert assert_type(server.addresses, dict[str, Address]).keys() == {"http"}
        models = assert_type(server.models, Models)
        response = await models.infer(InferenceRequest("m", [Tensor.from_numpy("X", X)]))
        assert assert_type(response, InferenceResponse).outputs[0].as_numpy().tolist() == [[4]]
        assert json.loads(json.dumps(models.model_config("m")))["max_batch_size"] == 4
        with pytest.raises(NotFound):
            await models.infer(InferenceRequest("unknown", []))


async def test_a_server_that_cannot_start(tmp_path: Path) -> None:
    server = Server(Settings(model_repository=(tmp_path / "none",), http_port=0, grpc_port=0, metrics_port=0))
    with pytest.raises(StartError, match="is not a directory"), trio.fail_after(60):
        await server.run()
