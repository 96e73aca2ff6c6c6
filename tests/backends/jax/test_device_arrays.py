"""Instances on a GPU: tensors that stay where they are, with the host for a device; the library finds no other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("flatbuffers")

import jax

from backends.devices.devices import Devices
from backends.devices.stream import DeviceStream
from backends.interface import InstanceSpec
from backends.jax import JaxBackend, device_arrays
from backends.jax import backend as backend_module
from backends.jax import loaded_function as loaded_function_module
from backends.jax.device_arrays import stream_of
from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import Overloaded
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.tensors.device_tensor import DeviceTensor
from protocol.tensors.dlpack import DeviceType
from repository.model_config import InstanceKind
from tests.backends.devices.host_runtime import HostRuntime, Pins, on_device, reads_of
from tests.backends.helpers import answer, infer, loaded, request_of, source_of, spec_of
from tests.backends.jax.jax_models import identity, save, spec

BATCHED = """
backend: "jax" max_batch_size: 4
input [ {{ name: "X" data_type: {type} dims: {dims} }} ]
output [ {{ name: "Y" data_type: {type} dims: {dims} }} ]
"""
FLOATS = BATCHED.format(type="TYPE_FP32", dims="[ 2 ]")
THERE = frozenset({"Y"})
NUMBERS = [datatype for datatype in BY_PROTOCOL_NAME.values() if datatype is not DataType.BYTES]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> HostRuntime:
    """The device of instances of KIND_GPU: its memory is the host's, and it copies when it is waited for."""
    made = HostRuntime(device_type=DeviceType.CPU)
    made.host.is_shared = True  # results are in the library's own memory

    def stream(spec: InstanceSpec, device: Any) -> DeviceStream:
        return Devices(new_runtime=lambda *_: made, pin=Pins()).stream(0)

    def device(spec: InstanceSpec, platforms: Any) -> Any:
        return jax.devices("cpu")[0]

    monkeypatch.setattr(backend_module, "stream_of", stream)
    monkeypatch.setattr(loaded_function_module, "device_of", device)
    return made


def on_gpu(config: str, folder: Path) -> InstanceSpec:
    return spec_of(source_of(config, folder), kind=InstanceKind.GPU)


def square(folder: Path) -> Path:
    save(folder, lambda X: {"Y": X * X}, X=spec("rows, 2"))  # noqa: N803
    return folder


def put(*values: float) -> Tensor:
    return on_device("X", rows(*values), (DeviceType.CPU, 0))


def rows(*values: float) -> np.ndarray[Any, Any]:
    return np.array([[value, value] for value in values], np.float32)


def output(response: Any) -> Tensor:
    assert isinstance(response, InferenceResponse)
    return response.outputs[0]


@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda datatype: datatype.name)
async def test_every_datatype(datatype: DataType, runtime: HostRuntime, tmp_path: Path) -> None:
    """From the host and back, alone and joined."""
    identity(tmp_path, datatype, "rows, 3")
    array = np.array([[1, 0, 1]]).astype(datatype.dtype)
    config = BATCHED.format(type=datatype.value, dims="[ 3 ]")
    async with loaded(JaxBackend, on_gpu(config, tmp_path)) as backend:
        alone = await infer(backend, request_of(("X", array)))
        joined = await infer(backend, request_of(("X", array)), request_of(("X", array)))
    assert [answer(each)["Y"].tolist() for each in (*alone, *joined)] == [array.tolist()] * 3
    assert answer(alone[0])["Y"].dtype == datatype.dtype
    assert runtime.copied == [array.nbytes] * 2 + [2 * array.nbytes] * 2


async def test_what_is_there_stays_there(runtime: HostRuntime, tmp_path: Path) -> None:
    """From one model to the next, alone and in a batch with what comes from the host."""
    async with loaded(JaxBackend, on_gpu(FLOATS, square(tmp_path))) as backend:
        given = put(3)
        (first,) = await infer(backend, InferenceRequest("m", [given], device_outputs=THERE))
        between = output(first)
        assert isinstance(between, DeviceTensor)
        assert runtime.copied == []
        second = InferenceRequest("m", [between.under("X", (1, 2))], device_outputs=THERE)
        responses = await infer(backend, second, request_of(("X", rows(2))), request_of(("X", rows(5))))
        assert (reads_of(given), between._host) == (0, None)
    made, *host = map(output, responses)
    assert isinstance(made, DeviceTensor)
    assert not any(isinstance(each, DeviceTensor) for each in host)
    assert [each.as_numpy().tolist() for each in (made, *host)] == [[[81, 81]], [[4, 4]], [[25, 25]]]


async def test_scalars(runtime: HostRuntime, tmp_path: Path) -> None:
    """A function of no dimensions, whose configuration has one."""
    save(tmp_path, lambda X: {"Y": X * X}, X=spec(""))  # noqa: N803
    config = """
        backend: "jax" input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
    """
    async with loaded(JaxBackend, on_gpu(config, tmp_path)) as backend:
        request = InferenceRequest("m", [Tensor.from_numpy("X", np.array([3], np.float32))], device_outputs=THERE)
        (response,) = await infer(backend, request)
    made = output(response)
    assert isinstance(made, DeviceTensor)
    assert (made.shape, made.as_numpy().tolist()) == ((1,), [9])


async def test_a_result_keeps_its_memory_when_the_model_has_gone(runtime: HostRuntime, tmp_path: Path) -> None:
    async with loaded(JaxBackend, on_gpu(FLOATS, square(tmp_path))) as backend:
        results = await infer(backend, *[InferenceRequest("m", [put(i)], device_outputs=THERE) for i in (1, 2, 3)])
        last = output(results[2])
        del results
        await infer(backend, request_of(("X", rows(7, 7, 7, 7))))
    assert last.as_numpy().tolist() == [[9, 9]]


async def test_a_full_device_fails_the_request_alone(runtime: HostRuntime, tmp_path: Path) -> None:
    async with loaded(JaxBackend, on_gpu(FLOATS, square(tmp_path))) as backend:
        runtime.free_bytes = 16
        small, large = await infer(backend, request_of(("X", rows(2))), request_of(("X", rows(1, 2, 3))))
        assert answer(small)["Y"].tolist() == [[4, 4]]
        assert isinstance(large, Overloaded)


def test_only_nvidias_gpus_get_a_stream(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no cupy the library copies by itself, and the log says so."""
    caplog.set_level(logging.INFO, logger="trioton.jax")
    gpu, here = object(), jax.devices("cpu")[0]
    found: Callable[[str], list[Any]] = {"cuda": [gpu], "cpu": [here]}.__getitem__
    monkeypatch.setattr(device_arrays, "devices_of", found)
    source = source_of(FLOATS)
    assert stream_of(spec_of(source), here) is None
    assert stream_of(spec_of(source, kind=InstanceKind.GPU), object()) is None
    assert caplog.text == ""
    runtime = HostRuntime()
    object.__setattr__(source, "devices", Devices(new_runtime=lambda *_: runtime, pin=Pins()))
    assert isinstance(stream_of(spec_of(source, kind=InstanceKind.GPU), gpu), DeviceStream)


def test_without_cupy_the_library_copies_by_itself(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="trioton.jax")
    monkeypatch.setattr("backends.devices.cuda.find_cupy", lambda: None)
    gpu = object()
    monkeypatch.setattr(device_arrays, "devices_of", lambda platform: [gpu])
    assert stream_of(spec_of(source_of(FLOATS), kind=InstanceKind.GPU), gpu) is None
    assert "model instance 'm_0_0': jax copies tensors by itself: GPU 0 cannot be used: cupy" in caplog.text
