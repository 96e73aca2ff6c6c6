"""What the tests of ensembles share: composing models that are a function each, ensembles written in a few words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import trio
from numpy.typing import NDArray

from actors.ensemble.composition import Composition
from actors.ensemble.ensemble import Ensemble
from actors.model.servable import ComposingModel as ComposingModel
from protocol.core import Respond
from protocol.errors import NotFound, ServerError
from protocol.messages import InferenceRequest, InferenceResponse, ParameterValue, Tensor
from repository.instance_groups import NO_GPUS
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt
from repository.validation import normalise, validate
from tests.backends.devices.host_runtime import on_device

Arrays: TypeAlias = dict[str, NDArray[Any]]
# What a model does with a request's inputs: one set of outputs, or (decoupled) several, with an error in the middle.
Function: TypeAlias = Callable[[Arrays], "Arrays | Sequence[Arrays | ServerError]"]


def tensors_text(names: Sequence[str]) -> str:
    """Of `name`, `name:BOOL` or `name:FP32:2,-1`, with `?` at the end for an optional input."""
    made: list[str] = []
    for each in names:
        name, data_type, dims = (*each.rstrip("?").split(":"), "", "")[:3]
        optional = " optional: true" if each.endswith("?") else ""
        made.append(f'{{ name: "{name}" data_type: TYPE_{data_type or "FP32"} dims: [ {dims or "1"} ]{optional} }}')
    return ", ".join(made)


def model_config(
    name: str,
    inputs: Sequence[str] = ("I",),
    outputs: Sequence[str] = ("O",),
    *,
    max_batch_size: int = 0,
    decoupled: bool = False,
    more: str = "",
) -> ModelConfig:
    policy = "model_transaction_policy { decoupled: true }" if decoupled else ""
    return parse_pbtxt(
        f'name: "{name}" backend: "toy" max_batch_size: {max_batch_size} input [ {tensors_text(inputs)} ] '
        f"output [ {tensors_text(outputs)} ] {policy} {more}",
        source="test",
    )


def step(model: str, inputs: str, outputs: str, *, version: int = -1) -> str:
    """`inputs` and `outputs` as `I=tensor J=tensor`."""
    maps = [
        f'{field} {{ key: "{name}" value: "{tensor}" }}'
        for field, text in (("input_map", inputs), ("output_map", outputs))
        for name, tensor in (pair.split("=") for pair in text.split())
    ]
    return f'{{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


def ensemble_config(
    *steps: str,
    name: str = "e",
    inputs: Sequence[str] = ("IN",),
    outputs: Sequence[str] = ("OUT",),
    max_batch_size: int = 0,
    parameters: Mapping[str, str] | None = None,
    max_inflight_requests: int = 0,
    more: str = "",
) -> ModelConfig:
    """A valid ensemble with the server's defaults in it."""
    entries = " ".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in (parameters or {}).items()
    )
    config = parse_pbtxt(
        f'name: "{name}" platform: "ensemble" max_batch_size: {max_batch_size} input [ {tensors_text(inputs)} ] '
        f"output [ {tensors_text(outputs)} ] ensemble_scheduling {{ step [ {', '.join(steps)} ] "
        f"max_inflight_requests: {max_inflight_requests} }} {entries} {more}",
        source="test",
    )
    return valid(config)


def valid(config: ModelConfig) -> ModelConfig:
    """With the server's defaults in it."""
    config = normalise(config, gpus=NO_GPUS, backend_default_cpu_count=1, backend_prefers_gpu=False)
    validate(config)
    return config


@dataclass(eq=False)
class Toy:
    """A composing model. What may stay on a device it leaves there. It takes `seconds` for each response, and before
    the first what `before` says for the request (None: not even a moment); `log` has what it was asked."""

    config: ModelConfig
    function: Function = dict
    seconds: float = 0.0
    before: Callable[[InferenceRequest], float | None] = lambda asked: None
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_ready: bool = True
    says_ready: bool = True
    takes_device_tensors: bool = False
    queue_takes_timeout: bool = False
    flags_last: bool = False  # the last response of a stream is marked final, and no flag comes by itself
    log: list[InferenceRequest] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    given_up: int = 0

    @property
    def name(self) -> str:
        return self.config.name

    async def check_ready(self) -> bool:
        return self.is_ready and self.says_ready

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        (response,) = await self._answer(request)
        return response

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        responses = await self._answer(request, respond)
        return bool(responses) and responses[-1].is_final

    def _is_final(self, before: Sequence[InferenceResponse], given: Arrays | Sequence[Arrays | ServerError]) -> bool:
        if not self.config.is_decoupled:
            return True
        return self.flags_last and len(before) == len(given) - 1

    async def _answer(
        self, request: InferenceRequest, respond: Callable[[InferenceResponse], Awaitable[None]] | None = None
    ) -> list[InferenceResponse]:
        self.log.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        responses: list[InferenceResponse] = []
        try:
            if (wait := self.before(request)) is not None:
                await trio.sleep(wait)
            given = self.function({tensor.name: tensor.as_numpy() for tensor in request.inputs})
            for arrays in [given] if isinstance(given, dict) else given:
                await trio.sleep(self.seconds)
                if isinstance(arrays, ServerError):
                    raise arrays
                outputs = [
                    on_device(name, array) if name in request.device_outputs else Tensor.from_numpy(name, array)
                    for name, array in arrays.items()
                ]
                response = InferenceResponse(
                    self.name, 1, outputs, request.id, dict(self.parameters), is_final=self._is_final(responses, given)
                )
                responses.append(response)
                if respond is not None:
                    await respond(response)
        except trio.Cancelled:
            self.given_up += 1
            raise
        finally:
            self.running -= 1
        return responses


def toy(
    name: str,
    function: Function | None = None,
    inputs: Sequence[str] = ("I",),
    outputs: Sequence[str] = ("O",),
    *,
    seconds: float = 0.0,
    max_batch_size: int = 0,
    decoupled: bool = False,
    **more: Any,
) -> Toy:
    config = model_config(name, inputs, outputs, max_batch_size=max_batch_size, decoupled=decoupled)
    return Toy(config, function or (lambda arrays: {"O": arrays["I"]}), seconds, **more)


def adds(amount: float, **more: Any) -> Function:
    """O = I + amount."""
    return lambda arrays: {"O": arrays["I"] + np.float32(amount)}


def finder(*models: ComposingModel) -> Callable[[str, int], ComposingModel]:
    known = {model.config.name: model for model in models}

    def find(name: str, version: int) -> ComposingModel:
        if name not in known:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return known[name]

    return find


def ensemble(config: ModelConfig, *models: ComposingModel, **more: Any) -> Ensemble:
    """An ensemble that does not run yet."""
    return Ensemble(Composition(config, finder(*models)), 1, **more)


@asynccontextmanager
async def serving(config: ModelConfig, *models: ComposingModel) -> Any:
    """An ensemble that runs, drained at the end."""
    made = ensemble(config, *models)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield made
        made.drain()


def vector(*values: float) -> NDArray[Any]:
    return np.array(values, dtype=np.float32)


def request(id: str = "", *, outputs: Sequence[str] = (), **inputs: Any) -> InferenceRequest:
    """For the ensemble `e`; inputs by name, as numbers (one FP32), booleans or arrays."""
    tensors = []
    for name, value in inputs.items():
        if isinstance(value, bool):
            value = np.array([value])
        elif isinstance(value, int | float):
            value = vector(value)
        tensors.append(Tensor.from_numpy(name, value))
    return InferenceRequest("e", tensors, id=id, requested_outputs=tuple(outputs))


def numbers(response: InferenceResponse) -> dict[str, Any]:
    """Each output's elements; a single one without its list."""
    found: dict[str, Any] = {}
    for tensor in response.outputs:
        elements = tensor.as_numpy().reshape(-1).tolist()
        found[tensor.name] = elements[0] if len(elements) == 1 else elements
    return found


async def collect(
    model: Ensemble, asked: InferenceRequest, into: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """All responses of a stream."""
    found: list[dict[str, Any]] = [] if into is None else into

    async def respond(response: InferenceResponse) -> None:
        found.append(numbers(response))

    await model.infer_stream(asked, respond)
    return found


def counts(**more: Any) -> Toy:
    """A decoupled model: I responses, 0, 1, 2, …"""
    return toy("d", lambda arrays: [{"O": vector(n)} for n in range(int(arrays["I"][0]))], decoupled=True, **more)


def fails(error: ServerError) -> Callable[[Any], Any]:
    def function(arrays: Any) -> Any:
        raise error

    return function


CHAIN = ensemble_config(step("a", "I=IN", "O=T"), step("b", "I=T", "O=OUT"))
WIDE = ensemble_config(step("a", "I=IN", "O=A"), step("b", "I=IN", "O=B"), step("c", "I=A J=B", "O=OUT"))
STREAM = ensemble_config(step("d", "I=IN", "O=T"), step("b", "I=T", "O=OUT"))


def first_number(asked: InferenceRequest) -> float:
    return float(asked.inputs[0].as_numpy()[0])


def product(arrays: Any) -> Any:
    return {"O": arrays["I"] * arrays["J"]}
