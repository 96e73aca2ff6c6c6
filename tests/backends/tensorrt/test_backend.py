"""The backend over the stand-ins of TensorRT and CUDA: loading, batches, profiles, graphs, sharing, errors."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from backends.interface import Backend, InstanceDied
from backends.tensorrt import TensorRTBackend
from protocol.errors import Internal, InvalidArgument, Overloaded, ServerError, Unavailable
from repository.model_config import InstanceKind, ModelInstanceGroup, SecondaryDevice
from tests.backends.helpers import answer, infer, loaded, request_of
from tests.backends.tensorrt.engine_models import ADD_SUB, add_sub_plan, spec, write_plan
from tests.backends.tensorrt.fake_tensorrt import plan, tensor
from tests.fake_cupy import FakeRuntime, FakeStream

PROFILE = (1, 4, 8)


def seen() -> dict[str, Any]:
    """What the stand-in of TensorRT was asked for."""
    found: dict[str, Any] = sys.modules["tensorrt"].seen
    return found


def rows_of(count: int, start: int = 0, width: int = 4) -> NDArray[np.float32]:
    return (np.arange(count * width, dtype=np.float32) + start).reshape(count, width)


async def sums(backend: Backend, *batch: int) -> None:
    """Run requests of so many rows as one batch, and hold the answers against numpy's."""
    inputs = [(rows_of(count, 10 * index), rows_of(count, 7)) for index, count in enumerate(batch)]
    requests = [request_of(("INPUT0", a), ("INPUT1", b)) for a, b in inputs]
    for (a, b), response in zip(inputs, await infer(backend, *requests), strict=True):
        found = answer(response)
        np.testing.assert_array_equal(found["OUTPUT0"], a + b)
        np.testing.assert_array_equal(found["OUTPUT1"], a - b)


async def refused(config: str, folder: Path, error: type[ServerError], **options: Any) -> str:
    with pytest.raises(error) as caught:
        async with loaded(TensorRTBackend, spec(config, folder, **options)):
            pass
    return caught.value.message


async def test_batches_are_computed_and_nothing_is_left_on_the_gpu(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    async with loaded(TensorRTBackend, spec(ADD_SUB, tmp_path)) as backend:
        for batch in ((1,), (3, 2), (8,), (1, 1, 1), (3,)):
            await sums(backend, *batch)
            assert not gpu.allocated  # tensors are a batch's
        assert gpu.pinned
        assert [(usage.type, usage.byte_size) for usage in backend.memory_usage()] == [("GPU", 512), ("GPU", 4096)]
    assert backend.memory_usage() == ()


@pytest.mark.parametrize(
    "optimization",
    [
        "input_pinned_memory { enable: false }",
        "output_pinned_memory { enable: false }",
        "cuda { output_copy_stream: true }",
        "cuda { busy_wait_events: true }",
        "cuda { graphs: true }",
        "eager_batching: true gather_kernel_buffer_threshold: 2",
        "priority: PRIORITY_MAX",
    ],
)
async def test_no_optimisation_changes_an_answer(gpu: FakeRuntime, tmp_path: Path, optimization: str) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    config = f"{ADD_SUB} optimization {{ {optimization} }}"
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        for batch in ((2,), (5,), (3, 5), (2,)):
            await sums(backend, *batch)
    assert [(stream.priority or 0) < 0 for stream in gpu.streams] == ["MAX" in optimization]
    assert not gpu.allocated


async def test_answers_are_memory_of_their_own(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    async with loaded(TensorRTBackend, spec(ADD_SUB, tmp_path)) as backend:
        ones, zeros = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
        (first,) = await infer(backend, request_of(("INPUT0", ones), ("INPUT1", zeros)))
        await infer(backend, request_of(("INPUT0", zeros), ("INPUT1", zeros)))
        assert answer(first)["OUTPUT0"].tolist() == [[1, 1, 1, 1]]


async def test_each_profile_has_a_context_and_the_nearest_runs(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan((1, 1, 2), (1, 2, 4), (2, 8, 8)))
    async with loaded(TensorRTBackend, spec(ADD_SUB, tmp_path, profiles=("2", "1"))) as backend:
        for rows in (1, 2, 3, 8, 6):
            await sums(backend, rows)
        assert [(context.profile, context.runs) for context in seen()["contexts"]] == [(2, 2), (1, 3)]


async def test_the_first_profile_is_used_where_none_is_named(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan((1, 1, 2), (1, 8, 8)))
    config = ADD_SUB.replace("max_batch_size: 8", "max_batch_size: 2")
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        await sums(backend, 2)
    assert [context.profile for context in seen()["contexts"]] == [0]
    assert "only supports max-batch 2" in await refused(ADD_SUB, tmp_path, InvalidArgument)


async def test_a_shape_that_no_profile_allows_fails_alone(gpu: FakeRuntime, tmp_path: Path) -> None:
    profile = [[1, 2], [2, 4], [4, 6]]
    write_plan(tmp_path, plan("identity", tensor("X", (-1, -1), profile), tensor("Y", (-1, -1), output=True)))
    config = """
    max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
    """
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        (refusal,) = await infer(backend, request_of(("X", rows_of(1, width=7))))
        assert isinstance(refusal, InvalidArgument)
        assert "expected the shape of dimension 1 to be between 2 and 6 but received 7" in refusal.message
        (good,) = await infer(backend, request_of(("X", rows_of(2, width=6))))
        assert answer(good)["Y"].tolist() == rows_of(2, width=6).tolist()


async def test_shapes_are_inferred_only_when_they_change(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    async with loaded(TensorRTBackend, spec(ADD_SUB, tmp_path)) as backend:
        for rows in (2, 2, 3, 3, 2):
            await sums(backend, rows)
        assert [context.inferred for context in seen()["contexts"]] == [3]


GRAPHS = f"{ADD_SUB} optimization {{ cuda {{ graphs: true }} }}"
BOUNDED = """
    optimization { cuda { graphs: true graph_spec { batch_size: 6 graph_lower_bound { batch_size: 4 } } } }
"""


async def test_graphs_serve_the_sizes_that_they_were_captured_for(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    async with loaded(TensorRTBackend, spec(GRAPHS, tmp_path)) as backend:
        main, *captured = seen()["contexts"]
        assert len(captured) == 6  # 1, 2, 3, 4, 6, 8
        assert len({context.memory for context in captured}) == 1
        for rows in (1, 2, 3, 4, 6, 8, 4):
            await sums(backend, rows)
        assert (gpu.launches, main.runs) == (7, 0)
        for rows in (5, 7):
            await sums(backend, rows)
        assert (gpu.launches, main.runs) == (7, 2)
        await sums(backend, 3)
    assert not gpu.allocated


async def test_a_larger_graph_serves_down_to_its_lower_bound(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    async with loaded(TensorRTBackend, spec(ADD_SUB + BOUNDED, tmp_path)) as backend:
        main, *_ = seen()["contexts"]
        for rows, launches in ((6, 1), (4, 2), (5, 3), (3, 3), (7, 3)):
            await sums(backend, rows)
            assert gpu.launches == launches
        assert main.runs == 2


async def test_beyond_the_batch_a_graph_gets_zeros_and_its_answer_is_cut(gpu: FakeRuntime, tmp_path: Path) -> None:
    profile = [[1, 1], [2, 4], [4, 8]]
    write_plan(tmp_path, plan("identity", tensor("X", (-1, -1), profile), tensor("Y", (-1, -1), output=True)))
    config = """
    max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
    optimization { cuda { graphs: true graph_spec { batch_size: 4 input { key: "X" value { dim: [ 8 ] } }
      graph_lower_bound { batch_size: 1 input { key: "X" value { dim: [ 2 ] } } } } } }
    """
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        for rows, width in ((4, 8), (3, 5), (1, 2)):
            (found,) = await infer(backend, request_of(("X", rows_of(rows, 1, width))))
            np.testing.assert_array_equal(answer(found)["Y"], rows_of(rows, 1, width))
        assert gpu.launches == 3


async def test_a_graph_that_cannot_be_captured_is_told_and_done_without(
    gpu: FakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(stream: FakeStream) -> None:
        stream.abandon_capture()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(FakeStream, "end_capture", refuse)
    write_plan(tmp_path, add_sub_plan(PROFILE))
    with caplog.at_level(logging.WARNING):
        async with loaded(TensorRTBackend, spec(GRAPHS, tmp_path)) as backend:
            await sums(backend, 2)
    assert gpu.launches == 0
    assert "no CUDA graph for m_0_0 with 'INPUT0' [1, 4], 'INPUT1' [1, 4]" in caplog.text


async def test_an_engine_of_a_fixed_number_of_rows_is_filled_up(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan((4, 4, 4), rows=4))
    config = ADD_SUB.replace("max_batch_size: 8", "max_batch_size: 4")
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        for batch in ((1,), (2, 1), (4,)):
            await sums(backend, *batch)


async def test_scalars_per_model_and_per_row(gpu: FakeRuntime, tmp_path: Path) -> None:
    config = """
    input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
    """
    write_plan(tmp_path, plan("identity", tensor("X", (), [[], [], []]), tensor("Y", (), output=True)))
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", np.array([5], np.float32))))
        assert answer(found)["Y"].tolist() == [5]
    profile = [[1], [2], [8]]
    write_plan(tmp_path, plan("identity", tensor("X", (-1,), profile), tensor("Y", (-1,), output=True)))
    config = f"max_batch_size: 8 {config.replace('[ 1 ]', '[ 1 ] reshape { }')}"
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", np.array([[5], [6]], np.float32))))
        assert answer(found)["Y"].tolist() == [[5], [6]]


async def test_outputs_whose_size_depends_on_the_data(gpu: FakeRuntime, tmp_path: Path) -> None:
    profile = [[1], [4], [64]]
    write_plan(tmp_path, plan("positives", tensor("X", (-1,), profile), tensor("Y", (-1,), output=True)))
    config = """
    input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
    optimization { cuda { graphs: true } }
    """
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        for values in ([1, -1, 2], [-1, -2], [3] * 64, [-5, 7]):
            (found,) = await infer(backend, request_of(("X", np.array(values, np.float32))))
            assert answer(found)["Y"].tolist() == [value for value in values if value > 0]
        assert gpu.launches == 0
    seen()["contexts"].clear()  # the stand-in remembers them, and they their memory
    assert not gpu.allocated


SHAPES = """
max_batch_size: 8
input [
  { name: "X" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "SHAPE" data_type: TYPE_INT32 dims: [ 1 ] is_shape_tensor: true }
]
output [
  { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "NEXT" data_type: TYPE_INT64 dims: [ 1 ] is_shape_tensor: true }
]
"""


def shapes_plan() -> bytes:
    return plan(
        "resized",
        tensor("X", (-1, -1), [[1, 1], [2, 2], [8, 8]]),
        tensor("SHAPE", (2,), [[1, 1], [2, 2], [8, 20]], dtype="INT32", shape_tensor=True),
        tensor("Y", (-1, -1), output=True),
        tensor("NEXT", (2,), output=True, dtype="INT64", shape_tensor=True),
    )


async def test_shape_tensors_get_the_batch_as_their_first_value(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, shapes_plan())
    config = f"{SHAPES} optimization {{ cuda {{ graphs: true }} }}"
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        for width, rows in ((3, (1, 2)), (20, (8,)), (3, (2,)), (5, (2,))):
            requests = [request_of(("X", rows_of(n)), ("SHAPE", np.array([width], np.int32))) for n in rows]
            for count, response in zip(rows, await infer(backend, *requests), strict=True):
                found = answer(response)
                assert found["Y"].shape == (count, width)
                assert found["NEXT"].tolist() == [width + 1]
        (refusal,) = await infer(backend, request_of(("X", rows_of(1)), ("SHAPE", np.array([21], np.int32))))
        assert isinstance(refusal, InvalidArgument)
        assert "'SHAPE' for m_0_0. Error details: model expected the value 1 to be between 1 and 20" in refusal.message


@pytest.mark.parametrize(("is_dynamic", "engines"), [(False, 1), (True, 2)])
async def test_instances_share_an_engine_without_open_shapes(
    gpu: FakeRuntime, tmp_path: Path, is_dynamic: bool, engines: int
) -> None:
    write_plan(tmp_path, add_sub_plan((1, 1, 2)) if is_dynamic else add_sub_plan((2, 2, 2), rows=2))
    first = spec(ADD_SUB.replace("max_batch_size: 8", "max_batch_size: 2"), tmp_path)
    async with loaded(TensorRTBackend, first) as one:
        async with loaded(TensorRTBackend, first) as other:
            assert len(seen()["engines"]) == engines
            assert len(seen()["contexts"]) == 2
            weights = [sum(usage.byte_size == 4096 for usage in each.memory_usage()) for each in (one, other)]
            assert weights == [1, engines - 1]
            await sums(other, 2)
        await sums(one, 1)
    async with loaded(TensorRTBackend, first):
        assert len(seen()["engines"]) == 2 * engines - (1 if is_dynamic else 0)


async def test_each_device_and_dla_core_has_an_engine_of_its_own(gpu: FakeRuntime, tmp_path: Path) -> None:
    gpu.device_count = 2
    seen()["dla_cores"] = 2
    write_plan(tmp_path, add_sub_plan((2, 2, 2), rows=2))
    first = spec(ADD_SUB.replace("max_batch_size: 8", "max_batch_size: 2"), tmp_path)
    second = type(first)(first.source, "m_0_1", InstanceKind.GPU, 1)
    third = type(first)(first.source, "m_0_2", InstanceKind.GPU, 1, secondary_devices=(SecondaryDevice(device_id=1),))
    async with loaded(TensorRTBackend, first), loaded(TensorRTBackend, second) as on_second:
        assert [engine.device for engine in seen()["engines"]] == [0, 1]
        async with loaded(TensorRTBackend, third):
            assert len(seen()["engines"]) == 3
        await sums(on_second, 1)
    assert [runtime.DLA_core for runtime in seen()["runtimes"]] == [-1, -1, 1]


async def test_a_dla_core_that_is_not_there(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    said = await refused(ADD_SUB, tmp_path, InvalidArgument, devices=[SecondaryDevice(device_id=3)])
    assert said.startswith("unable to create TensorRT runtime with DLA Core ID: 3, available number of DLA cores: 0")


async def test_settings_reach_the_runtime(gpu: FakeRuntime, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    settings = {"version_compatible": "true", "plugins": "/a.so;/missing.so;/refused.so"}
    strategy = 'parameters { key: "execution_context_allocation_strategy" value { string_value: "ON_PROFILE_CHANGE" } }'
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            async with loaded(TensorRTBackend, spec(ADD_SUB + strategy, tmp_path, **settings)) as backend:  # type: ignore[arg-type]  # all are settings
                await sums(backend, 1)
    assert [runtime.engine_host_code_allowed for runtime in seen()["runtimes"]] == [True, True]
    assert seen()["plugins"] == ["/a.so", "/missing.so", "/refused.so"]  # once for the process
    assert "plugin library '/missing.so' cannot be loaded: /missing.so: cannot open shared object file" in caplog.text
    assert "plugin library '/refused.so' cannot be loaded" in caplog.text
    assert [context.strategy.name for context in seen()["contexts"]] == ["ON_PROFILE_CHANGE"] * 2


async def test_kinds_without_a_gpu_are_refused(tmp_path: Path) -> None:
    for kind in (InstanceKind.CPU, InstanceKind.MODEL):
        said = await refused(ADD_SUB, tmp_path, InvalidArgument, kind=kind)
        assert said.startswith("unable to load model 'm', TensorRT backend supports only GPU device")
    with pytest.raises(InvalidArgument, match="supports only GPU device"):
        await TensorRTBackend.complete_config(spec("", tmp_path).source)
    with pytest.raises(InvalidArgument, match="supports only GPU device"):
        await TensorRTBackend.check_model(spec("", tmp_path).source)


async def test_a_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("library", "engines", "execution"):
        monkeypatch.delitem(sys.modules, f"backends.tensorrt.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    said = await refused(ADD_SUB, tmp_path, Unavailable)
    assert said.startswith(
        "model 'm' needs the tensorrt and cupy packages and an NVIDIA GPU: pip install 'trioton[tens"
    )
    source = spec("instance_group { kind: KIND_GPU gpus: 0 }", tmp_path).source
    with pytest.raises(Unavailable, match=r"pip install 'trioton\[tensorrt\]'"):
        await TensorRTBackend.complete_config(source)


async def test_a_driver_that_does_not_work_is_told(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    gpu.device_count = 0
    said = await refused(ADD_SUB, tmp_path, Unavailable)
    assert said.startswith(
        "model 'm' needs the NVIDIA GPU 0: GPU 0 cannot be used: cupy is not installed or sees no GPU"
    )
    gpu.device_count = 1
    first = type(spec("", tmp_path))(spec("", tmp_path).source, "m_0_0", InstanceKind.GPU, 4)
    with pytest.raises(Unavailable, match="model 'm' needs the NVIDIA GPU 4: GPU 4: cudaErrorInvalidDevice"):
        async with loaded(TensorRTBackend, first):
            pass


async def test_files_that_are_not_there_or_no_engines(gpu: FakeRuntime, tmp_path: Path) -> None:
    said = await refused(ADD_SUB, tmp_path, Unavailable)
    assert said == f"unable to find '{tmp_path}/1/model.plan' for model instance 'm'"
    write_plan(tmp_path, b"no engine")
    said = await refused(ADD_SUB, tmp_path, Internal)
    assert said.startswith("unable to create TensorRT engine: Serialization assertion stdMagicTag failed")
    assert "(model 'm', TensorRT 11.4.0.106)" in said
    source = spec("instance_group { kind: KIND_GPU gpus: 0 }", tmp_path).source
    with pytest.raises(InvalidArgument, match=f"unable to load plan file to auto complete config: {tmp_path}"):
        await TensorRTBackend.complete_config(source)


async def test_completion_reads_the_file_of_the_first_gpu(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE), "other.plan")
    source = spec(
        'instance_group { kind: KIND_GPU gpus: 0 } cc_model_filenames { key: "8.6" value: "other.plan" }', tmp_path
    ).source
    found = await TensorRTBackend.complete_config(source)
    assert found.max_batch_size == 8
    assert [entry.name for entry in found.input] == ["INPUT0", "INPUT1"]
    assert [entry.name for entry in found.output] == ["OUTPUT0", "OUTPUT1"]
    await TensorRTBackend.check_model(type(source)("m", 1, tmp_path, found))
    wrong = msgspec.structs.replace(found, instance_group=(ModelInstanceGroup(kind=InstanceKind.GPU, profile=("4",)),))
    with pytest.raises(InvalidArgument, match="specified invalid profile 4"):
        await TensorRTBackend.check_model(type(source)("m", 1, tmp_path, wrong))


async def test_memory_that_cannot_be_had_fails_the_load(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    gpu.free_bytes = 100
    said = await refused(GRAPHS, tmp_path, Overloaded)
    assert said.startswith("GPU 0: no memory left: cudaErrorMemoryAllocation")
    seen()["refuses_contexts"] = True
    said = await refused(ADD_SUB, tmp_path, Overloaded)
    assert said.startswith("unable to create TensorRT context for m_0_0: Error Code 2: OutOfMemory")


async def test_what_tensorrt_refuses_to_enqueue_fails_the_batch(
    gpu: FakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    async with loaded(TensorRTBackend, spec(ADD_SUB, tmp_path)) as backend:
        monkeypatch.setattr(type(seen()["contexts"][0]), "execute_async_v3", lambda context, stream: False)
        (refusal,) = await infer(backend, request_of(("INPUT0", rows_of(1)), ("INPUT1", rows_of(1))))
        assert isinstance(refusal, Internal)
        assert refusal.message == "unable to enqueue for inference m_0_0: TensorRT gives no reason"


async def test_a_gpu_that_fails_ends_the_instance(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path, add_sub_plan(PROFILE))
    async with loaded(TensorRTBackend, spec(ADD_SUB, tmp_path)) as backend:
        computes = type(seen()["contexts"][0]).execute_async_v3

        def lose(context: Any, stream: int) -> bool:
            gpu.is_lost = True
            return bool(computes(context, stream))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(seen()["contexts"][0]), "execute_async_v3", lose)
            with pytest.raises(InstanceDied, match=r"'m_0_0' died: its GPU has failed: GPU 0: cudaError"):
                await infer(backend, request_of(("INPUT0", rows_of(1)), ("INPUT1", rows_of(1))))


@pytest.mark.parametrize("dtype", ["FLOAT", "HALF", "BF16", "INT8", "INT32", "INT64", "BOOL", "UINT8"])
async def test_every_datatype_goes_through(gpu: FakeRuntime, tmp_path: Path, dtype: str) -> None:
    data_type = {"FLOAT": "FP32", "HALF": "FP16"}.get(dtype, dtype)
    x, y = tensor("X", (-1, 3), [[1, 3], [2, 3], [4, 3]], dtype=dtype), tensor("Y", (-1, 3), dtype=dtype, output=True)
    write_plan(tmp_path, plan("identity", x, y))
    config = f"""
    max_batch_size: 4 input {{ name: "X" data_type: TYPE_{data_type} dims: [ 3 ] }}
    output {{ name: "Y" data_type: TYPE_{data_type} dims: [ 3 ] }}
    """
    async with loaded(TensorRTBackend, spec(config, tmp_path)) as backend:
        entry = backend.spec.config.input[0]
        values = np.array([[1, 0, 2], [0, 1, 1]]).astype(entry.data_type.dtype)
        (found,) = await infer(backend, request_of(("X", values)))
        np.testing.assert_array_equal(answer(found)["Y"], values)


async def test_datatypes_that_the_protocol_lacks_are_refused(gpu: FakeRuntime, tmp_path: Path) -> None:
    x, y = tensor("X", (-1, 3), [[1, 3], [2, 3], [4, 3]], dtype="FP8"), tensor("Y", (-1, 3), dtype="FP8", output=True)
    write_plan(tmp_path, plan("identity", x, y))
    config = 'max_batch_size: 4 input { name: "X" data_type: TYPE_INT8 dims: [ 3 ] }'
    said = await refused(config + ' output { name: "Y" data_type: TYPE_INT8 dims: [ 3 ] }', tmp_path, Internal)
    assert said == "unsupported datatype TYPE_INT8 for input 'X' for model 'm'"
