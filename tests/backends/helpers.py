"""What the backends' tests share: sources and specs from `config.pbtxt` text, requests from arrays."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio
from numpy.typing import NDArray

from backends.interface import Backend, InstanceSpec, ModelSource
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import InstanceKind
from repository.pbtxt import parse_pbtxt


def source_of(
    config: str, directory: Path = Path("/nowhere"), *, name: str = "m", settings: Mapping[str, str] | None = None
) -> ModelSource:
    """Version 1 of model `name` in `directory`, configured by `config.pbtxt` text."""
    parsed = msgspec.structs.replace(parse_pbtxt(config, source="config.pbtxt"), name=name)
    return ModelSource(name, 1, directory, parsed, settings or {})


def spec_of(source: ModelSource, *, kind: InstanceKind = InstanceKind.CPU) -> InstanceSpec:
    return InstanceSpec(source, f"{source.name}_0_0", kind)


def request_of(
    *arrays: tuple[str, NDArray[Any]], request_id: str = "", outputs: tuple[str, ...] = ()
) -> InferenceRequest:
    inputs = [Tensor.from_numpy(name, array) for name, array in arrays]
    return InferenceRequest("m", inputs, id=request_id, requested_outputs=outputs)


def objects(*elements: str | bytes) -> NDArray[Any]:
    """A BYTES array of one dimension."""
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def answer(response: InferenceResponse | ServerError) -> dict[str, NDArray[Any]]:
    """The response's outputs as arrays; an error of this request alone is raised."""
    if isinstance(response, ServerError):
        raise response
    return {output.name: output.as_numpy() for output in response.outputs}


async def infer(backend: Backend, *requests: InferenceRequest) -> Sequence[InferenceResponse | ServerError]:
    """Run the requests as one batch."""
    result = await backend.execute(requests)
    return result.responses


async def threads_ended(name: str) -> None:
    """Return when no thread of this name is left."""
    for thread in threading.enumerate():
        if thread.name == name:
            await trio.to_thread.run_sync(thread.join)


@asynccontextmanager
async def loaded(backend_class: type[Backend], spec: InstanceSpec) -> AsyncIterator[Backend]:
    """One instance, loaded, and unloaded at the end as the model instance actor does it."""
    backend = backend_class(spec)
    try:
        await backend.load()
        yield backend
    finally:
        await backend.unload()
