"""Tensors that stay on the GPU, over the stand-ins of TensorRT and cupy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.devices.devices import Devices
from backends.interface import InstanceSpec
from backends.tensorrt import TensorRTBackend
from protocol.errors import Overloaded
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.tensors.device_tensor import DeviceTensor, device_tensor
from repository.model_config import InstanceKind
from tests.backends.helpers import answer, infer, loaded, request_of
from tests.backends.tensorrt.engine_models import spec as spec_of
from tests.backends.tensorrt.engine_models import write_plan
from tests.backends.tensorrt.fake_tensorrt import plan, tensor
from tests.fake_cupy import FakeRuntime

SAME = """
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 64 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 64 ] }
"""
GRAPHS = (
    SAME + "optimization { cuda { graphs: true graph_spec { batch_size: 4 graph_lower_bound { batch_size: 1 } } } }"
)
THERE = frozenset({"Y"})
ROW = 64 * 4  # bytes


def write_identity(folder: Path, rows: int = -1) -> None:
    profile = [[max(rows, 1), 64], [max(rows, 4), 64], [max(rows, 8), 64]]
    write_plan(folder, plan("identity", tensor("X", (rows, 64), profile), tensor("Y", (rows, 64), output=True)))


def row(*values: float) -> np.ndarray[Any, Any]:
    return np.repeat(np.array(values, np.float32)[:, None], 64, axis=1)


def put(spec: InstanceSpec, *values: float, device_id: int = 0) -> DeviceTensor:
    """A tensor on a GPU, by the server's own devices."""
    host = Tensor.from_numpy("X", row(*values))
    stream = spec.source.devices.stream(device_id)
    buffer = stream.joined([host])
    stream.synchronize()
    return device_tensor("X", host.datatype, host.shape, buffer)


def asked(*inputs: Tensor, stays: bool = True) -> InferenceRequest:
    return InferenceRequest("m", list(inputs), device_outputs=THERE if stays else frozenset())


def output(response: Any) -> Tensor:
    assert isinstance(response, InferenceResponse), response
    return response.outputs[0]


def bound(name: str) -> int:
    """Where the last run of the first context had a tensor."""
    address: int = sys.modules["tensorrt"].seen["contexts"][0]._addresses[name]
    return address


async def test_what_is_there_is_bound_where_it_is_and_stays(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_identity(tmp_path)
    spec = spec_of(SAME, tmp_path)
    async with loaded(TensorRTBackend, spec) as backend:
        given = put(spec, 3)
        gpu.copied.clear()
        (first,) = await infer(backend, asked(given))
        between = output(first)
        assert isinstance(between, DeviceTensor)
        assert (bound("X"), bound("Y")) == (given.buffer.address, between.buffer.address)
        (second,) = await infer(backend, asked(between.under("X", (1, 64))))
        assert gpu.copied == []
        made = output(second)
        assert isinstance(made, DeviceTensor)
        assert made.as_numpy().tolist() == row(3).tolist()
        # The first answer is memory of its own, which later batches leave alone.
        await infer(backend, request_of(("X", row(9))))
        assert between.as_numpy().tolist() == row(3).tolist()
    del given, first, between, second, made
    assert not gpu.allocated


async def test_a_batch_of_what_is_here_there_and_on_the_host(gpu: FakeRuntime, tmp_path: Path) -> None:
    gpu.device_count = 2
    write_identity(tmp_path)
    spec = spec_of(SAME, tmp_path)
    async with loaded(TensorRTBackend, spec) as backend:
        batch = [
            asked(put(spec, 1)),
            asked(put(spec, 2, 3, device_id=1), stays=False),
            request_of(("X", row(4))),
            asked(put(spec, 5), stays=False),
        ]
        gpu.copied.clear()
        responses = await infer(backend, *batch)
    assert gpu.copied == [ROW, 2 * ROW, ROW, ROW, 5 * ROW]  # each once, and the outputs to the host in one piece
    assert [isinstance(output(each), DeviceTensor) for each in responses] == [True, False, False, False]
    assert [answer(each)["Y"][:, 0].tolist() for each in responses] == [[1], [2, 3], [4], [5]]


async def test_what_is_on_another_gpu_is_copied_to_this_one(gpu: FakeRuntime, tmp_path: Path) -> None:
    gpu.device_count = 2
    write_identity(tmp_path)
    spec = spec_of(SAME, tmp_path)
    async with loaded(TensorRTBackend, spec) as backend:
        given = put(spec, 7, device_id=1)
        gpu.copied.clear()
        (response,) = await infer(backend, asked(given))
        assert gpu.copied == [ROW]
        made = output(response)
        assert isinstance(made, DeviceTensor)
        assert made.buffer.device == (2, 0)
        assert made.as_numpy().tolist() == row(7).tolist()


async def test_a_graph_takes_and_gives_device_tensors(gpu: FakeRuntime, tmp_path: Path) -> None:
    """What it computes in is its own: batches are copied in and out, on the device."""
    write_identity(tmp_path)
    spec = spec_of(GRAPHS, tmp_path)
    async with loaded(TensorRTBackend, spec) as backend:
        made = []
        for values in ((1, 2, 3, 4), (5, 6), (7,)):
            given = put(spec, *values)
            gpu.copied.clear()
            (response,) = await infer(backend, asked(given))
            assert gpu.copied == [len(values) * ROW] * 2
            made.append(output(response))
        assert gpu.launches == 3
        assert [each.as_numpy()[:, 0].tolist() for each in made] == [[1, 2, 3, 4], [5, 6], [7]]
        assert backend.memory_usage()[0].byte_size == 2 * 512 + 2 * 4 * ROW  # contexts, and a graph's tensors
    del made, given, response
    sys.modules["tensorrt"].seen["contexts"].clear()
    assert not gpu.allocated


async def test_fixed_rows_are_filled_up_on_the_device(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_identity(tmp_path, rows=4)
    spec = spec_of(SAME.replace("8", "4"), tmp_path)
    async with loaded(TensorRTBackend, spec) as backend:
        (one, other) = await infer(backend, asked(put(spec, 1)), asked(put(spec, 2)))
    assert output(one).as_numpy().tolist() == row(1).tolist()
    assert output(other).as_numpy().tolist() == row(2).tolist()


async def test_an_output_of_unknown_size_stays_too(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, plan("positives", tensor("X", (-1,), [[1], [4], [64]]), tensor("Y", (-1,), output=True)))
    config = """
    input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
    """
    async with loaded(TensorRTBackend, spec_of(config, tmp_path)) as backend:
        found = []
        for values in ([1, -1, 2], [3, 4], [-5]):
            (response,) = await infer(backend, asked(Tensor.from_numpy("X", np.array(values, np.float32))))
            found.append(output(response))
            assert isinstance(found[-1], DeviceTensor)
        assert [each.as_numpy().tolist() for each in found] == [[1, 2], [3, 4], []]
        gpu.free_bytes = 300  # room for the inputs, not for what TensorRT asks for
        (refusal,) = await infer(backend, request_of(("X", np.ones(64, np.float32))))
        assert isinstance(refusal, Overloaded)
        gpu.free_bytes = 1 << 20
        (after,) = await infer(backend, request_of(("X", np.ones(64, np.float32))))
        assert len(answer(after)["Y"]) == 64


async def test_shape_tensors_on_a_device_are_read_by_the_host(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(
        tmp_path,
        plan(
            "resized",
            tensor("X", (-1, -1), [[1, 1], [2, 2], [8, 64]]),
            tensor("SHAPE", (2,), [[1, 1], [2, 2], [8, 20]], dtype="INT32", shape_tensor=True),
            tensor("Y", (-1, -1), output=True),
            tensor("NEXT", (2,), output=True, dtype="INT64", shape_tensor=True),
        ),
    )
    config = """
    max_batch_size: 8
    input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] },
            { name: "SHAPE" data_type: TYPE_INT32 dims: [ 1 ] is_shape_tensor: true } ]
    output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] },
             { name: "NEXT" data_type: TYPE_INT64 dims: [ 1 ] is_shape_tensor: true } ]
    """
    spec = spec_of(config, tmp_path)
    async with loaded(TensorRTBackend, spec) as backend:
        values = Tensor.from_numpy("SHAPE", np.array([5], np.int32))
        stream = spec.source.devices.stream(0)
        buffer = stream.joined([values])
        stream.synchronize()
        (response,) = await infer(
            backend, asked(put(spec, 2), device_tensor("SHAPE", values.datatype, values.shape, buffer))
        )
    assert isinstance(output(response), DeviceTensor)
    found = answer(response)
    assert (found["Y"].tolist(), found["NEXT"].tolist()) == ([[2] * 5], [6])


@pytest.mark.parametrize("config", [SAME, GRAPHS])
async def test_a_full_device_fails_the_request_alone(gpu: FakeRuntime, tmp_path: Path, config: str) -> None:
    write_identity(tmp_path)
    async with loaded(TensorRTBackend, spec_of(config, tmp_path)) as backend:
        held = sum(size for size, _ in gpu.allocated.values())
        gpu.free_bytes = held + 4 * ROW
        small, large = await infer(backend, request_of(("X", row(1))), request_of(("X", row(2, 3, 4))))
        assert answer(small)["Y"].tolist() == row(1).tolist()
        assert isinstance(large, Overloaded)
        assert large.message.startswith("GPU 0: no memory left")
        (after,) = await infer(backend, request_of(("X", row(5, 6))))
        assert answer(after)["Y"].tolist() == row(5, 6).tolist()


async def test_what_tensorrt_has_no_memory_for_fails_the_request(
    gpu: FakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(context: Any, stream: int) -> bool:
        context.engine.logger.log(sys.modules["tensorrt"].ILogger.Severity.ERROR, "Cuda Runtime (out of memory)")
        return False

    write_identity(tmp_path)
    async with loaded(TensorRTBackend, spec_of(SAME, tmp_path)) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(type(sys.modules["tensorrt"].seen["contexts"][0]), "execute_async_v3", refuse)
            (refusal,) = await infer(backend, request_of(("X", row(1))))
        assert isinstance(refusal, Overloaded)
        assert refusal.message == "unable to enqueue for inference m_0_0: Cuda Runtime (out of memory)"
        (after,) = await infer(backend, request_of(("X", row(1))))
        assert answer(after)["Y"].tolist() == row(1).tolist()


async def test_tensors_are_of_the_servers_pool(gpu: FakeRuntime, tmp_path: Path) -> None:
    """Within its limit they are its, beyond it the driver's."""
    write_identity(tmp_path)
    spec = spec_of(GRAPHS, tmp_path)
    object.__setattr__(spec.source, "devices", Devices(cuda_pool_bytes={0: 10_000}))
    asked_for: list[int] = []
    async with loaded(TensorRTBackend, spec) as backend:
        pool: Any = gpu.pool  # type: ignore[attr-defined]  # the stand-in's
        assert pool.limits == {0: 10_000}
        allocate = pool.malloc

        def malloc(size: int) -> Any:
            asked_for.append(size)
            return allocate(size)

        pool.malloc = malloc
        await infer(backend, request_of(("X", row(1, 2))))
        assert asked_for == [2 * ROW, 2 * ROW]  # its input and its output
        pool.limits = {0: 0}
        (found,) = await infer(backend, request_of(("X", row(1, 2))))
        assert answer(found)["Y"].tolist() == row(1, 2).tolist()


async def test_each_instance_has_a_stream_on_its_gpu(gpu: FakeRuntime, tmp_path: Path) -> None:
    gpu.device_count = 2
    write_identity(tmp_path)
    first = spec_of(SAME, tmp_path)
    second = InstanceSpec(first.source, "m_0_1", InstanceKind.GPU, 0)
    third = InstanceSpec(first.source, "m_0_2", InstanceKind.GPU, 1)
    async with (
        loaded(TensorRTBackend, first) as a,
        loaded(TensorRTBackend, second) as b,
        loaded(TensorRTBackend, third) as c,
    ):
        assert [stream.device for stream in gpu.streams] == [0, 0, 1]
        for backend in (a, b, c):
            (found,) = await infer(backend, request_of(("X", row(8))))
            assert answer(found)["Y"].tolist() == row(8).tolist()
