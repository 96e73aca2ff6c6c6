"""Real engines, built by TensorRT's builder on the spot and held against numpy. Needs an NVIDIA GPU."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.devices.machine import compute_capabilities
from backends.tensorrt import TensorRTBackend
from protocol.errors import Overloaded
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.tensors.device_tensor import DeviceTensor
from tests.backends.conformance.serving import model_of, serving
from tests.backends.helpers import answer, infer, loaded, request_of
from tests.backends.tensorrt.engine_models import ADD_SUB, spec, write_plan
from tests.backends.tensorrt.test_served import write_chain
from tests.examples.loading import load_example


def has_gpu() -> bool:
    try:
        import cupy
        import tensorrt  # noqa: F401 (whether it can be imported)

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # a package is missing, or its libraries, or the driver
        return False


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="needs TensorRT, cupy and an NVIDIA GPU")]
SIZES = (1, 4, 8)


def add_sub(width: int, *profiles: tuple[int, int, int]) -> bytes:
    """Sum and difference of rows; with a width of -1 up to 64."""
    import tensorrt as trt

    from backends.tensorrt.library import log

    builder = trt.Builder(log())
    network = builder.create_network()
    inputs = [network.add_input(name, trt.float32, (-1, width)) for name in ("INPUT0", "INPUT1")]
    for name, operation in (("OUTPUT0", "SUM"), ("OUTPUT1", "SUB")):
        layer = network.add_elementwise(*inputs, getattr(trt.ElementWiseOperation, operation))
        layer.get_output(0).name = name
        network.mark_output(layer.get_output(0))
    config = builder.create_builder_config()
    widths = (1, 16, 64) if width == -1 else (width,) * 3
    for bounds in profiles:
        profile = builder.create_optimization_profile()
        for tensor in inputs:
            profile.set_shape(tensor.name, *zip(bounds, widths, strict=True))
        config.add_optimization_profile(profile)
    built = builder.build_serialized_network(network, config)
    assert built is not None, log().last_error()
    return bytes(built)


async def check(backend: Any, *batch: int, width: int = 4) -> None:
    random = np.random.default_rng(sum(batch))
    pairs = [random.random((2, rows, width), np.float32) for rows in batch]
    requests = [request_of(("INPUT0", a), ("INPUT1", b)) for a, b in pairs]
    for (a, b), response in zip(pairs, await infer(backend, *requests), strict=True):
        found = answer(response)
        np.testing.assert_allclose(found["OUTPUT0"], a + b, rtol=1e-6)
        np.testing.assert_allclose(found["OUTPUT1"], a - b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "optimization",
    [
        "",
        "cuda { graphs: true }",
        "cuda { graphs: true graph_spec { batch_size: 8 graph_lower_bound { batch_size: 2 } } }",
        "priority: PRIORITY_MAX input_pinned_memory { enable: false } output_pinned_memory { enable: false }",
    ],
)
async def test_a_real_engine_computes_what_numpy_does(tmp_path: Path, optimization: str) -> None:
    write_plan(tmp_path, add_sub(4, SIZES))
    async with loaded(TensorRTBackend, spec(f"{ADD_SUB} optimization {{ {optimization} }}", tmp_path)) as backend:
        for batch in ((1,), (3, 2), (8,), (2,), (7,), (1, 1)):
            await check(backend, *batch)


async def test_profiles_of_a_real_engine(tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub(-1, (1, 1, 2), (1, 8, 8)))
    config = ADD_SUB.replace("dims: [ 4 ]", "dims: [ -1 ]")
    async with loaded(TensorRTBackend, spec(config, tmp_path, profiles=("0", "1"))) as backend:
        for rows, width in ((1, 3), (8, 64), (2, 16), (5, 1)):
            await check(backend, rows, width=width)


async def test_two_instances_of_a_real_engine(tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub(4, SIZES))
    of = spec(ADD_SUB, tmp_path)
    async with loaded(TensorRTBackend, of) as one, loaded(TensorRTBackend, of) as other:
        await check(one, 3)
        await check(other, 8)


async def test_a_real_engine_completes_its_configuration(tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub(4, SIZES))
    found = await TensorRTBackend.complete_config(spec("instance_group { kind: KIND_GPU gpus: 0 }", tmp_path).source)
    assert found.max_batch_size == 8
    assert [(entry.name, entry.dims) for entry in found.input] == [("INPUT0", (4,)), ("INPUT1", (4,))]


async def test_a_plan_of_the_example(tmp_path: Path) -> None:
    load_example("formats/tensorrt_format").add_sub(tmp_path)
    config = (tmp_path / "config.pbtxt").read_text()
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        await check(backend, 3, width=16)


@pytest.mark.parametrize("optimization", ["", "cuda { graphs: true }"])
async def test_tensors_of_a_real_engine_stay_on_the_gpu(tmp_path: Path, optimization: str) -> None:
    """Sum and difference go in again, from where they are: twice the first input comes out."""
    write_plan(tmp_path, add_sub(64, SIZES))
    config = ADD_SUB.replace("dims: [ 4 ]", "dims: [ 64 ]") + f" optimization {{ {optimization} }}"
    a, b = np.random.default_rng(0).random((2, 3, 64), np.float32)
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        asked = request_of(("INPUT0", a), ("INPUT1", b))
        asked.device_outputs = frozenset({"OUTPUT0", "OUTPUT1"})
        (first,) = await infer(backend, asked)
        assert isinstance(first, InferenceResponse)
        assert all(isinstance(tensor, DeviceTensor) for tensor in first.outputs)
        between = [each.under(each.name.replace("OUT", "IN"), each.shape) for each in first.outputs]
        (second,) = await infer(backend, InferenceRequest("m", between))
        np.testing.assert_allclose(answer(second)["OUTPUT0"], 2 * a, rtol=1e-5)
        np.testing.assert_allclose(answer(second)["OUTPUT1"], 2 * b, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(answer(first)["OUTPUT0"], a + b, rtol=1e-6)  # no later batch writes to it


async def test_an_ensemble_of_real_engines(tmp_path: Path) -> None:
    """On the first and on the last GPU of the machine."""
    last = len(compute_capabilities()) - 1
    groups = {"first": "kind: KIND_GPU gpus: 0", "second": f"kind: KIND_GPU gpus: {last}"}
    write_chain(tmp_path, add_sub(4, SIZES), groups)
    a, b = np.random.default_rng(1).random((2, 3, 4), np.float32)
    async with serving(tmp_path, load=["e"]) as core:
        for _ in range(3):
            found = await model_of(core, "e").infer({"A": a, "B": b})
            np.testing.assert_allclose(found["OUT"], 2 * a, rtol=1e-5)


async def test_a_full_gpu_fails_the_request_and_not_the_instance(tmp_path: Path) -> None:
    import cupy

    most = 1 << 22
    write_plan(tmp_path, add_sub(64, (1, 8, most)))
    config = ADD_SUB.replace("dims: [ 4 ]", "dims: [ 64 ]").replace("max_batch_size: 8", f"max_batch_size: {most}")
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        await check(backend, 2, width=64)
        taken = []
        for size in (1 << 30, 1 << 24):
            with suppress(cupy.cuda.runtime.CUDARuntimeError):
                while True:
                    taken.append(cupy.cuda.Memory(size))
        rows = np.ones((most // 4, 64), np.float32)  # 256 MiB
        (refusal,) = await infer(backend, request_of(("INPUT0", rows), ("INPUT1", rows)))
        assert isinstance(refusal, Overloaded)
        taken.clear()
        await check(backend, 2, width=64)
