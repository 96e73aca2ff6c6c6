"""Requests whose tensors lie on a device: as they are to a model that takes them so, through the host to others."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import trio

from actors.cache.response_cache import ResponseCache, VersionCache
from actors.model.model import Model
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest
from protocol.tensors.device_tensor import DeviceTensor
from repository.model_config import InstanceKind
from tests.actors.fakes import CONFIG, FakeBackend, fake_backend, spec
from tests.backends.devices.host_runtime import HostMemory, on_device


def asked() -> InferenceRequest:
    tensor = on_device("IN", np.full((1, 2), 3, dtype=np.float32))
    return InferenceRequest("m", [tensor], has_device_inputs=True)


def reading_threads(request: InferenceRequest) -> list[threading.Thread]:
    tensor = request.inputs[0]
    assert isinstance(tensor, DeviceTensor)
    assert isinstance(tensor.buffer.memory, HostMemory)
    return tensor.buffer.memory.reads


@asynccontextmanager
async def serving(
    seen: list[InferenceRequest], kind: InstanceKind, *, takes: bool = True, cache: VersionCache | None = None
) -> AsyncIterator[Model]:
    def look(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        seen.extend(requests)

    backend = fake_backend(on_execute=look)
    backend.takes_device_tensors = takes
    model = Model(CONFIG, 1, backend, [replace(spec(), kind=kind)], cache=cache)
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        yield model
        model.drain()


async def test_a_model_on_a_gpu_gets_them_as_they_are() -> None:
    seen: list[InferenceRequest] = []
    async with serving(seen, InstanceKind.GPU) as model:
        response = await model.infer(asked())
    assert response.outputs[0].as_numpy().tolist() == [[3, 3]]
    assert isinstance(seen[0].inputs[0], DeviceTensor)


@pytest.mark.parametrize(("kind", "takes"), [(InstanceKind.CPU, True), (InstanceKind.GPU, False)])
async def test_others_get_them_in_host_memory(kind: InstanceKind, takes: bool) -> None:
    """Copied in a thread: the server's loop waits for no device."""
    seen: list[InferenceRequest] = []
    request = asked()
    reads = reading_threads(request)
    async with serving(seen, kind, takes=takes) as model:
        response = await model.infer(request)
    assert response.outputs[0].as_numpy().tolist() == [[3, 3]]
    assert not isinstance(seen[0].inputs[0], DeviceTensor)
    assert len(reads) == 1
    assert reads[0] is not threading.main_thread()


async def test_they_are_checked_as_any() -> None:
    """By their shape; nothing is read for that."""
    seen: list[InferenceRequest] = []
    request = asked()
    request.inputs[0].shape = (1, 3)
    reads = reading_threads(request)
    async with serving(seen, InstanceKind.GPU) as model:
        with pytest.raises(InvalidArgument, match="IN"):
            await model.infer(request)
    assert (seen, reads) == ([], [])


async def test_what_lies_on_a_device_is_not_cached() -> None:
    seen: list[InferenceRequest] = []
    cache = ResponseCache("local", {"size": "1000000"})
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        async with serving(seen, InstanceKind.GPU, cache=VersionCache(cache, b"k" * 32, 1)) as model:
            for _ in range(2):
                await model.infer(asked())
            assert len(seen) == 2
            host = [
                msgspec.structs.replace(asked(), inputs=[asked().inputs[0]], has_device_inputs=False) for _ in range(3)
            ]
            host[0].device_outputs = frozenset({"OUT"})
            for request in host:
                await model.infer(request)
            assert len(seen) == 4  # the first for its outputs, the second as it was not there; then it is
        nursery.cancel_scope.cancel()
