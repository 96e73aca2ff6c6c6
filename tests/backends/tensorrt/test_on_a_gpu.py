"""Real engines, built by TensorRT's builder on the spot and held against numpy. Needs an NVIDIA GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.tensorrt import TensorRTBackend
from tests.backends.helpers import answer, infer, loaded, request_of
from tests.backends.tensorrt.engine_models import ADD_SUB, spec, write_plan
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
        "cuda { graphs: true output_copy_stream: true busy_wait_events: true }",
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
