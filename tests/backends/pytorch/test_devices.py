"""Instances on a device: the code path of GPUs, with the host for a device where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from backends.devices.devices import Devices
from backends.devices.stream import DeviceStream
from backends.interface import InstanceSpec
from backends.pytorch import PyTorchBackend
from backends.pytorch import backend as backend_module
from backends.pytorch.device import Device, StreamDevice, device_of
from backends.pytorch.torch_runtime import TorchMemory, TorchRuntime
from protocol.datatypes import DataType
from protocol.errors import Overloaded
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.tensors.device_tensor import DeviceBuffer, DeviceTensor, device_tensor
from repository.model_config import InstanceKind
from tests.backends.devices.host_runtime import Pins
from tests.backends.helpers import answer, infer, loaded, objects, request_of, source_of, spec_of
from tests.backends.pytorch.torch_models import save_script

HAS_GPU = torch.cuda.is_available()
NEEDS_GPU = (pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="torch sees no GPU"))
BATCHED = """
    backend: "pytorch" max_batch_size: 8
    input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
THERE = frozenset({"Y"})


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Odd(torch.nn.Module):
    """A result that is not row by row in memory, and one that is the argument itself."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t(), x


@pytest.fixture(params=["host", pytest.param("gpu", marks=NEEDS_GPU)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where instances of KIND_GPU compute."""
    if request.param == "gpu":
        return torch.device("cuda", 0)

    def stand_in(spec: InstanceSpec) -> Device:
        return StreamDevice(torch.device("cpu"), spec) if spec.kind is InstanceKind.GPU else device_of(spec)

    monkeypatch.setattr(backend_module, "device_of", stand_in)
    return torch.device("cpu")


def spec(config: str, folder: Path) -> InstanceSpec:
    source = source_of(config, folder)
    if not HAS_GPU:
        object.__setattr__(source, "devices", Devices(pin=Pins()))
    return spec_of(source, kind=InstanceKind.GPU)


def put(device: torch.device, *values: float) -> DeviceTensor:
    """A tensor on the device, one row for each value."""
    made = torch.tensor([[value, value] for value in values], dtype=torch.float32, device=device)
    memory = TorchMemory(device)
    return device_tensor(
        "X", DataType.FP32, tuple(made.shape), DeviceBuffer(memory, made.data_ptr(), made.nbytes, made)
    )


def rows(*values: float) -> np.ndarray[Any, Any]:
    return np.array([[value, value] for value in values], np.float32)


def outputs(responses: Sequence[Any]) -> list[Tensor]:
    for response in responses:
        assert isinstance(response, InferenceResponse)
    return [response.outputs[0] for response in responses]


async def test_host_to_host(device: torch.device, tmp_path: Path) -> None:
    save_script(Double(), tmp_path, "")
    async with loaded(PyTorchBackend, spec(BATCHED, tmp_path)) as backend:
        responses = await infer(backend, request_of(("X", rows(1, 2))), request_of(("X", rows(3))))
    assert [answer(each)["Y"].tolist() for each in responses] == [[[2, 2], [4, 4]], [[6, 6]]]
    assert not any(isinstance(tensor, DeviceTensor) for tensor in outputs(responses))


async def test_what_is_there_stays_there(device: torch.device, tmp_path: Path) -> None:
    """From one model to the next, alone and in a batch with what comes from the host."""
    save_script(Double(), tmp_path, "")
    async with loaded(PyTorchBackend, spec(BATCHED, tmp_path)) as backend:
        first = InferenceRequest("m", [put(device, 1, 2)], device_outputs=THERE)
        (between,) = outputs(await infer(backend, first))
        assert isinstance(between, DeviceTensor)
        second = InferenceRequest("m", [between.under("X", (2, 2))], device_outputs=THERE)
        responses = await infer(backend, second, request_of(("X", rows(5))))
        assert between._host is None
    made, host = outputs(responses)
    assert isinstance(made, DeviceTensor)
    assert not isinstance(host, DeviceTensor)
    assert (made.as_numpy().tolist(), host.as_numpy().tolist()) == ([[4, 4], [8, 8]], [[10, 10]])


async def test_results_are_brought_into_order(device: torch.device, tmp_path: Path) -> None:
    save_script(Odd(), tmp_path, "")
    config = """
        backend: "pytorch" input [ { name: "X" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2, -1 ] } ]
        output [ { name: "Z" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
    """
    async with loaded(PyTorchBackend, spec(config, tmp_path)) as backend:
        asked = InferenceRequest("m", [put(device, 1, 2, 3)], device_outputs=frozenset({"Y", "Z"}))
        (response,) = await infer(backend, asked)
        del asked
    found = answer(response)
    assert (found["Y"].tolist(), found["Z"].tolist()) == ([[1, 2, 3], [1, 2, 3]], [[1, 1], [2, 2], [3, 3]])


async def test_bfloat16_and_strings(device: torch.device, tmp_path: Path) -> None:
    """Numbers of every kind go over; strings stay on the host."""

    class Named(torch.nn.Module):
        def forward(self, x: torch.Tensor, names: list[str]) -> tuple[torch.Tensor, list[str]]:
            return x + 1, names

    save_script(Named(), tmp_path, "")
    config = """
        backend: "pytorch"
        input [ { name: "x" data_type: TYPE_BF16 dims: [ -1 ] }, { name: "names" data_type: TYPE_STRING dims: [ -1 ] } ]
        output [ { name: "A__0" data_type: TYPE_BF16 dims: [ -1 ] } ]
        output [ { name: "B__1" data_type: TYPE_STRING dims: [ -1 ] } ]
    """
    x = np.array([1, 2], ml_dtypes.bfloat16)
    async with loaded(PyTorchBackend, spec(config, tmp_path)) as backend:
        (response,) = await infer(backend, request_of(("x", x), ("names", objects(b"a", b"b"))))
    found = answer(response)
    assert (found["A__0"].tolist(), found["B__1"].tolist()) == ([2, 3], [b"a", b"b"])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
async def test_a_full_device_fails_the_request_alone(
    device: torch.device, error: RuntimeError, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Wherever it is noticed: the larger request fails, the one beside it is answered, the instance serves on."""
    save_script(Double(), tmp_path, "")
    allocate = TorchRuntime.allocate

    def limited(runtime: TorchRuntime, byte_size: int, stream: Any) -> DeviceBuffer:
        if byte_size > 16:
            monkeypatch.setattr(torch, "empty", refuse)
        try:
            return allocate(runtime, byte_size, stream)
        finally:
            monkeypatch.setattr(torch, "empty", empty)

    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise error

    empty = torch.empty
    monkeypatch.setattr(TorchRuntime, "allocate", limited)
    async with loaded(PyTorchBackend, spec(BATCHED, tmp_path)) as backend:
        small, large = await infer(backend, request_of(("X", rows(1))), request_of(("X", rows(1, 2, 3))))
        assert answer(small)["Y"].tolist() == [[2, 2]]
        assert isinstance(large, Overloaded)
        assert "no memory left" in large.message
        (after,) = await infer(backend, request_of(("X", rows(7))))
        assert answer(after)["Y"].tolist() == [[14, 14]]


def test_the_runtime_copies_every_way(device: torch.device) -> None:
    runtime = TorchRuntime(device)
    stream = DeviceStream(runtime, Devices(pin=Pins()).pinned)
    joined = stream.joined([Tensor.from_numpy("x", rows(1)), put(device, 2), Tensor.from_numpy("x", rows(3))])
    (found,) = stream.to_host([joined])
    assert np.frombuffer(found, np.float32).tolist() == [1, 1, 2, 2, 3, 3]
    memory = runtime.memory
    memory.write(joined.address, rows(9).tobytes())
    memory.copy(joined.address + 8, joined.address, 8)
    assert np.frombuffer(memory.read(joined.address, 24), np.float32).tolist() == [9, 9, 9, 9, 3, 3]
    assert bytes(memory.read(joined.address, 0)) == b""
