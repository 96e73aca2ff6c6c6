"""Instances on a device: the code path of GPUs, with real sessions on the host, which stands for the device."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.devices.devices import Devices
from backends.devices.stream import DeviceStream
from backends.onnxruntime import OnnxRuntimeBackend
from backends.onnxruntime.providers import CPU, CUDA, TENSORRT, on_stream
from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import Overloaded
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.tensors.device_tensor import DeviceTensor
from protocol.tensors.dlpack import DeviceType
from repository.model_config import InstanceKind
from tests.backends.devices.host_runtime import HostRuntime, Pins, on_device, reads_of
from tests.backends.helpers import answer, infer, loaded, request_of, source_of, spec_of
from tests.backends.onnxruntime.onnx_models import identity, model, node, save, tensor
from tests.fake_cupy import FakeRuntime

BATCHED = """
max_batch_size: 8
input [ {{ name: "X" data_type: {type} dims: {dims} }} ]
output [ {{ name: "Y" data_type: {type} dims: {dims} }} ]
"""
FLOATS = BATCHED.format(type="TYPE_FP32", dims="[ 2 ]")
THERE = frozenset({"Y"})


class OnHost(OnnxRuntimeBackend):
    """As on a GPU, with a device in host memory that copies at once: the library computes there and knows no stream."""

    def _new_stream(self) -> DeviceStream:
        self.runtime = HostRuntime(device_type=DeviceType.CPU)
        self.runtime.is_eager = self.runtime.host.is_shared = True  # outputs are in the library's own memory
        return Devices(new_runtime=lambda *_: self.runtime, pin=Pins()).stream(0)


def squares(folder: Path) -> Path:
    return save(model([node("Mul", ["X", "X"], "Y")], [tensor("X", ["N", 2])], [tensor("Y", ["N", 2])]), folder)


def put(*values: float) -> Tensor:
    return on_device("X", rows(*values), (DeviceType.CPU, 0))


def rows(*values: float) -> np.ndarray[Any, Any]:
    return np.array([[value, value] for value in values], np.float32)


def output(response: Any) -> Tensor:
    assert isinstance(response, InferenceResponse)
    return response.outputs[0]


NUMBERS = [datatype for datatype in BY_PROTOCOL_NAME.values() if datatype is not DataType.BYTES]


@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda datatype: datatype.name)
async def test_every_datatype(datatype: DataType, tmp_path: Path) -> None:
    """Alone and joined; what is empty has no address."""
    source = source_of(
        BATCHED.format(type=datatype.value, dims="[ -1 ]"), save(identity(["N", "M"], datatype), tmp_path)
    )
    array = np.array([[1, 0, 1]]).astype(datatype.dtype)
    async with loaded(OnHost, spec_of(source)) as backend:
        alone = await infer(backend, request_of(("X", array)))
        joined = await infer(backend, request_of(("X", array)), request_of(("X", array)))
        empty = await infer(backend, request_of(("X", array[:, :0])))
    assert [answer(each)["Y"].tolist() for each in (*alone, *joined)] == [array.tolist()] * 3
    assert answer(empty[0])["Y"].shape == (1, 0)


async def test_what_is_there_stays_there(tmp_path: Path) -> None:
    async with loaded(OnHost, spec_of(source_of(FLOATS, squares(tmp_path)))) as backend:
        given = put(3)
        (first,) = await infer(backend, InferenceRequest("m", [given], device_outputs=THERE))
        between = output(first)
        assert isinstance(between, DeviceTensor)
        second = InferenceRequest("m", [between.under("X", (1, 2))], device_outputs=THERE)
        responses = await infer(backend, second, request_of(("X", rows(2))))
        assert (reads_of(given), between._host) == (0, None)
    made, host = map(output, responses)
    assert isinstance(made, DeviceTensor)
    assert not isinstance(host, DeviceTensor)
    assert (made.as_numpy().tolist(), host.as_numpy().tolist()) == ([[81, 81]], [[4, 4]])


async def test_scalars(tmp_path: Path) -> None:
    """A model without dimensions, whose configuration has one."""
    directory = save(model([node("Mul", ["X", "X"], "Y")], [tensor("X", [])], [tensor("Y", [])]), tmp_path)
    config = """
        input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
    """
    async with loaded(OnHost, spec_of(source_of(config, directory))) as backend:
        request = InferenceRequest("m", [Tensor.from_numpy("X", np.array([3], np.float32))], device_outputs=THERE)
        (response,) = await infer(backend, request)
    made = output(response)
    assert isinstance(made, DeviceTensor)
    assert (made.shape, made.as_numpy().tolist()) == ((1,), [9])


async def test_a_full_device_fails_the_request_alone(tmp_path: Path) -> None:
    async with loaded(OnHost, spec_of(source_of(FLOATS, squares(tmp_path)))) as backend:
        assert isinstance(backend, OnHost)
        backend.runtime.free_bytes = 16
        small, large = await infer(backend, request_of(("X", rows(2))), request_of(("X", rows(1, 2, 3))))
        assert answer(small)["Y"].tolist() == [[4, 4]]
        assert isinstance(large, Overloaded)


def test_providers_of_gpus_compute_on_the_stream() -> None:
    given = [(TENSORRT, {"device_id": "0"}), (CUDA, {"device_id": "0"}), (CPU, {})]
    assert on_stream(given, 4711) == [
        (TENSORRT, {"device_id": "0", "user_compute_stream": "4711"}),
        (CUDA, {"device_id": "0", "user_compute_stream": "4711"}),
        (CPU, {}),
    ]
    assert given[1] == (CUDA, {"device_id": "0"})


STATES = """
    sequence_batching { state [ { input_name: "X" output_name: "Y" data_type: TYPE_FP32 dims: [ 2 ] } ] }
"""


@pytest.mark.parametrize(
    ("config", "is_there"),
    [(FLOATS, True), (FLOATS + STATES, False), (BATCHED.format(type="TYPE_STRING", dims="[ 2 ]"), False)],
)
def test_which_models_have_a_stream(config: str, is_there: bool, cupy_runtime: FakeRuntime) -> None:
    backend = OnnxRuntimeBackend(spec_of(source_of(config), kind=InstanceKind.GPU))
    assert (backend._new_stream() is not None) is is_there
    assert len(cupy_runtime.streams) == is_there


def test_without_cupy_the_library_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    source = source_of(FLOATS, squares(tmp_path))
    caplog.set_level(logging.INFO, "trioton.devices")
    assert OnnxRuntimeBackend(spec_of(source, kind=InstanceKind.GPU))._new_stream() is None
    assert "onnxruntime copies tensors by itself" in caplog.text
    assert OnnxRuntimeBackend(spec_of(source))._new_stream() is None


@pytest.mark.gpu
@pytest.mark.skipif(
    "CUDAExecutionProvider" not in __import__("onnxruntime").get_available_providers(),
    reason="onnxruntime is not built for CUDA",
)
async def test_on_a_gpu(tmp_path: Path) -> None:
    async with loaded(OnnxRuntimeBackend, spec_of(source_of(FLOATS, squares(tmp_path)), kind=InstanceKind.GPU)) as it:
        (first,) = await infer(it, InferenceRequest("m", request_of(("X", rows(3))).inputs, device_outputs=THERE))
        between = output(first)
        assert isinstance(between, DeviceTensor)
        (second,) = await infer(it, InferenceRequest("m", [between.under("X", (1, 2))]))
    assert answer(second)["Y"].tolist() == [[81, 81]]
