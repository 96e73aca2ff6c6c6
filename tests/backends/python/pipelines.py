"""Several Python models behind a real core: for what models do with each other."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import trio
from numpy.typing import NDArray

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from backends.registry import BackendRegistry
from protocol.messages import InferenceRequest, InferenceResponse, ParameterValue, Tensor

# Models by name: the text behind `HEAD`, or that and the configuration behind `CONFIG`.
Models: TypeAlias = Mapping[str, str | tuple[str, str]]

HEAD = """
import asyncio, json, os, signal, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def answer(array, name="OUT"):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.asarray(array))])

def call(model, array, outputs=("OUT",), **more):
    tensors = [pb_utils.Tensor("IN", np.asarray(array, np.float32))]
    return pb_utils.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=list(outputs), **more)

def given(request):
    return request.inputs()[0].as_numpy()

def value(response):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()

"""
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"

PLUS_ONE = "return [answer(given(r) + 1) for r in requests]"
# Counts down from its input; 0 gives nothing but the flag.
COUNT_DOWN = """
    for r in requests:
        sender = r.get_response_sender()
        for number in range(int(given(r)[0]), 0, -1):
            if sender.is_cancelled():
                break
            sender.send(answer(np.array([number], np.float32)))
        sender.send(flags=FINAL)
"""


def executing(body: str) -> str:
    """A model whose `execute` has this body."""
    inner = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    return f"class TritonPythonModel:\n    def execute(self, requests):\n{inner}\n"


def add_model(repository: Path, name: str, text: str, config: str = "", version: int = 1) -> None:
    """`text` is what stands in model.py behind `HEAD`, `config` what is added to `CONFIG`."""
    folder = repository / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(HEAD + textwrap.dedent(text))
    (repository / name / "config.pbtxt").write_text(CONFIG + config)


@asynccontextmanager
async def serving(
    repository: Path,
    models: Models,
    *,
    control_mode: ControlMode = ControlMode.NONE,
    load_models: Sequence[str] = (),
    backend_config: Mapping[str, Mapping[str, str]] | None = None,
) -> AsyncIterator[ServerCore]:
    """A core with these models, each by its text or by text and configuration; stopped in order afterwards."""
    for name, model in models.items():
        add_model(repository, name, *((model,) if isinstance(model, str) else model))
    settings = CoreSettings(
        (repository,), control_mode=control_mode, load_models=tuple(load_models), backend_config=backend_config or {}
    )
    core = ServerCore(settings, BackendRegistry())
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        yield core
        core.stop()


def request(
    model: str, array: Sequence[float] = (1.0,), *, id: str = "", **parameters: ParameterValue
) -> InferenceRequest:
    return InferenceRequest(
        model, [Tensor.from_numpy("IN", np.array(array, np.float32))], id=id, parameters=dict(parameters)
    )


async def ask(core: ServerCore, model: str, *array: float, **more: Any) -> NDArray[Any]:
    """A model's only output."""
    return (await core.infer(request(model, array or (1.0,), **more))).outputs[0].as_numpy()


async def ask_stream(core: ServerCore, model: str, *array: float, **more: Any) -> list[InferenceResponse]:
    found: list[InferenceResponse] = []

    async def respond(response: InferenceResponse) -> None:
        found.append(response)

    await core.infer_stream(request(model, array or (1.0,), **more), respond)
    return found


def text(found: NDArray[Any]) -> str:
    """What a model has answered in words, as an array of one element."""
    decoded: str = found.reshape(-1)[0].decode()
    return decoded
