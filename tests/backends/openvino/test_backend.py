"""Real OpenVINO models in the backend: completion, shapes, rows, datatypes, parameters, errors, cancellation."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

pytest.importorskip("openvino")

import openvino as ov
from openvino import opset13 as ops

from backends.interface import InstanceSpec
from backends.openvino import OpenVinoBackend
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable, Unsupported
from repository.model_config import InstanceKind, ModelConfig
from tests.backends.helpers import answer, infer, loaded, request_of, source_of, spec_of
from tests.backends.openvino.openvino_models import identity, long_running, save, sum_of, tensor

ROWS = """
max_batch_size: 4
input [ { name: "A" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


def parameter(key: str, text: str) -> str:
    return f'\nparameters {{ key: "{key}" value {{ string_value: "{text}" }} }}'


def spec(config: str, folder: Path, **settings: str) -> InstanceSpec:
    return spec_of(source_of(f'backend: "openvino"\n{config}', folder, settings=settings))


async def complete(config: str, folder: Path, **settings: str) -> ModelConfig:
    return await OpenVinoBackend.complete_config(spec(config, folder, **settings).source)


def dims(config: ModelConfig) -> list[tuple[int, ...]]:
    return [*(entry.dims for entry in config.input), *(entry.dims for entry in config.output)]


def rows_of(count: int, width: int = 3) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


async def refused(config: str, folder: Path, kind: type[ServerError]) -> str:
    """What a load says that fails."""
    with pytest.raises(kind) as caught:
        async with loaded(OpenVinoBackend, spec(config, folder)):
            pass
    assert "'m'" in caught.value.message
    return caught.value.message


async def test_a_model_whose_layouts_have_a_batch_is_completed_to_one_that_batches(tmp_path: Path) -> None:
    """Also where its file has a single row."""
    sum_of(tmp_path, [1, 3], layout="NC")
    config = await complete("", tmp_path)
    assert config.max_batch_size == 4
    assert config.dynamic_batching is not None
    assert [entry.name for entry in config.input] == ["A", "B"]
    assert [entry.name for entry in config.output] == ["SUM"]
    assert dims(config) == [(3,)] * 3
    assert (await complete("", tmp_path, **{"default-max-batch-size": "0"})).max_batch_size == 1


async def test_a_model_without_layouts_is_completed_with_its_whole_shapes(tmp_path: Path) -> None:
    sum_of(tmp_path, [-1, 3])
    config = await complete("", tmp_path)
    assert config.max_batch_size == 0
    assert config.dynamic_batching is None
    assert dims(config) == [(-1, 3)] * 3


async def test_a_model_that_may_not_have_any_number_of_rows_is_completed_with_its_own(tmp_path: Path) -> None:
    sum_of(tmp_path, [2, 3], layout="NC")
    config = await complete(parameter("SKIP_OV_DYNAMIC_BATCHSIZE", "YES"), tmp_path)
    assert config.max_batch_size == 0
    assert dims(config) == [(2, 3)] * 3


async def test_a_given_batch_size_completes_a_model_without_layouts(tmp_path: Path) -> None:
    sum_of(tmp_path, [1, 3])
    config = await complete("max_batch_size: 8", tmp_path)
    assert dims(config) == [(3,)] * 3


async def test_a_model_of_one_row_takes_as_many_as_the_configuration_says(tmp_path: Path) -> None:
    sum_of(tmp_path, [1, 3])
    async with loaded(OpenVinoBackend, spec(ROWS, tmp_path)) as backend:
        for count in (1, 3, 4):
            (found,) = await infer(backend, request_of(("A", rows_of(count)), ("B", rows_of(count))))
            assert answer(found)["SUM"].tolist() == (2 * rows_of(count)).tolist()


async def test_short_batches_are_filled_up_on_request(tmp_path: Path) -> None:
    """With zeros, which the model sees and no client does."""
    x = tensor("X", [-1, 3])
    total = ops.add(x, ops.reduce_sum(ops.relu(ops.add(x, np.float32(1))), np.array([0]), keep_dims=True))
    save(tmp_path, [x], {"Y": total})
    config = """
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
    ones = np.ones((1, 3), np.float32)
    async with loaded(OpenVinoBackend, spec(config, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", ones)))
        assert answer(found)["Y"].tolist() == [[3.0, 3.0, 3.0]]
    padding = parameter("ENABLE_BATCH_PADDING", "YES")
    async with loaded(OpenVinoBackend, spec(config + padding, tmp_path)) as backend:
        first, second = await infer(backend, request_of(("X", ones)), request_of(("X", ones)))
        assert answer(first)["Y"].tolist() == answer(second)["Y"].tolist() == [[7.0, 7.0, 7.0]]


async def test_a_model_of_a_fixed_number_of_rows_refuses_others(tmp_path: Path) -> None:
    sum_of(tmp_path, [1, 3])
    config = ROWS + parameter("SKIP_OV_DYNAMIC_BATCHSIZE", "YES")
    async with loaded(OpenVinoBackend, spec(config, tmp_path)) as backend:
        (whole,) = await infer(backend, request_of(("A", rows_of(4)), ("B", rows_of(4))))
        (part,) = await infer(backend, request_of(("A", rows_of(2)), ("B", rows_of(2))))
        assert answer(whole)["SUM"].tolist() == (2 * rows_of(4)).tolist()
        with pytest.raises(InvalidArgument, match=r"expected requests with batch size '4', got '2'.*'m'"):
            answer(part)


async def test_dimensions_are_taken_from_the_configuration_on_request(tmp_path: Path) -> None:
    sum_of(tmp_path, [-1, 7])
    assert "the model expects 2 dimensions" in await refused(ROWS, tmp_path, InvalidArgument)
    reshaping = parameter("RESHAPE_IO_LAYERS", "YES")
    async with loaded(OpenVinoBackend, spec(ROWS + reshaping, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("A", rows_of(2)), ("B", rows_of(2))))
        assert answer(found)["SUM"].shape == (2, 3)
    none = ROWS.replace("dims: [ 3 ] },", "dims: [ 1 ] reshape { shape: [ 0 ] } },")
    assert "does not support dimensions values other than `-1`" in await refused(
        none + reshaping, tmp_path, InvalidArgument
    )


async def test_values_are_converted_to_the_datatypes_of_the_configuration(tmp_path: Path) -> None:
    sum_of(tmp_path, [-1, 3])
    config = ROWS.replace('"A" data_type: TYPE_FP32', '"A" data_type: TYPE_INT32').replace(
        '"SUM" data_type: TYPE_FP32', '"SUM" data_type: TYPE_FP16'
    )
    async with loaded(OpenVinoBackend, spec(config, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("A", rows_of(2).astype(np.int32)), ("B", rows_of(2))))
        assert answer(found)["SUM"].dtype == np.float16
        assert answer(found)["SUM"].tolist() == (2 * rows_of(2)).tolist()


async def test_inputs_are_read_where_they_lie_and_never_written_to(tmp_path: Path) -> None:
    x = tensor("X", [-1, 3])
    save(tmp_path, [x], {"Y": ops.relu(x)})
    config = """
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
    request = request_of(("X", -rows_of(2)))
    async with loaded(OpenVinoBackend, spec(config, tmp_path)) as backend:
        (found,) = await infer(backend, request)
        assert not answer(found)["Y"].any()
        await infer(backend, request_of(("X", rows_of(2))))
        assert not answer(found)["Y"].any()
    assert request.inputs[0].as_numpy().tolist() == (-rows_of(2)).tolist()


async def test_a_scalar_is_one_element(tmp_path: Path) -> None:
    x = tensor("X", [])
    save(tmp_path, [x], {"Y": ops.add(x, np.float32(1))})
    source = spec("", tmp_path).source
    config = await OpenVinoBackend.complete_config(source)
    assert dims(config) == [(1,), (1,)]
    given = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
    async with loaded(OpenVinoBackend, spec(given, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", np.array([2], np.float32))))
        assert answer(found)["Y"].tolist() == [3.0]


async def test_a_model_keeps_nothing_of_one_batch_for_the_next(tmp_path: Path) -> None:
    """Its own variables begin anew."""
    x = tensor("X", [1, 3])
    start = ops.constant(np.zeros((1, 3), np.float32))
    read = ops.read_value(start, "kept")
    total = ops.add(x, read)
    assign = ops.assign(total, "kept")
    total.output(0).set_names({"Y"})
    (tmp_path / "1").mkdir()
    model = ov.Model([ops.result(total)], [assign], [x], "m")
    ov.save_model(model, str(tmp_path / "1" / "model.xml"), compress_to_fp16=False)
    config = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1, 3 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1, 3 ] } ]
"""
    async with loaded(OpenVinoBackend, spec(config, tmp_path)) as backend:
        for _ in range(3):
            (found,) = await infer(backend, request_of(("X", np.ones((1, 3), np.float32))))
            assert answer(found)["Y"].tolist() == [[1.0, 1.0, 1.0]]


async def test_an_onnx_file_is_read_by_its_name(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from protocol.datatypes import DataType
    from tests.backends.onnxruntime.onnx_models import identity as onnx_identity
    from tests.backends.onnxruntime.onnx_models import save as save_onnx

    save_onnx(onnx_identity(["rows", "size"], DataType.FP32), tmp_path)
    config = """
default_model_filename: "model.onnx"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
    async with loaded(OpenVinoBackend, spec(config, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("X", rows_of(2))))
        assert answer(found)["Y"].tolist() == rows_of(2).tolist()


async def test_shapes_that_do_not_fit_each_other_are_the_clients_mistake(tmp_path: Path) -> None:
    sum_of(tmp_path, [-1, -1])
    config = ROWS.replace("[ 3 ]", "[ -1 ]")
    async with loaded(OpenVinoBackend, spec(config, tmp_path)) as backend:
        (found,) = await infer(backend, request_of(("A", rows_of(1, 3)), ("B", rows_of(1, 4))))
        with pytest.raises(InvalidArgument, match=r"^openvino error in running model : .*mismatch \(model 'm'\)") as e:
            answer(found)
        assert ".cpp" not in e.value.message
        (found,) = await infer(backend, request_of(("A", rows_of(1)), ("B", rows_of(1))))
        assert answer(found)["SUM"].tolist() == (2 * rows_of(1)).tolist()


async def test_a_size_outside_of_the_models_range_is_the_clients_mistake(tmp_path: Path) -> None:
    identity(tmp_path, [-1, ov.Dimension(1, 4)])
    config = """
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
    async with loaded(OpenVinoBackend, spec(config, tmp_path)) as backend:
        right, wrong = (
            await infer(backend, request_of(("X", rows_of(1, 4)))),
            await infer(backend, request_of(("X", rows_of(1, 5)))),
        )
        assert answer(right[0])["Y"].shape == (1, 4)
        with pytest.raises(InvalidArgument, match="openvino error in running model"):
            answer(wrong[0])


async def test_wrong_models_say_why(tmp_path: Path) -> None:
    path = sum_of(tmp_path, [-1, 3])
    channels_first = tmp_path / "channels_first"
    sum_of(channels_first, [3, 4], layout="CN")
    assert "expected the batch as first dimension" in await refused(ROWS, channels_first, InvalidArgument)
    double = tmp_path / "strings"
    identity(double, [-1], ov.Type.string)
    assert "unsupported datatype string for input 'X'" in await _completion_error(double, Unsupported)
    vector = tmp_path / "vector"
    sum_of(vector, [3])
    assert "first dimension must be -1" in await refused(ROWS, vector, InvalidArgument)
    path.with_suffix(".bin").unlink()
    weights = tmp_path / "weights"
    x = tensor("X", [-1, 3])
    save(weights, [x], {"Y": ops.matmul(x, rows_of(3), False, False)}).with_suffix(".bin").unlink()
    assert "openvino error in reading model" in await _completion_error(weights, Internal)


async def _completion_error(folder: Path, kind: type[ServerError]) -> str:
    with pytest.raises(kind) as caught:
        await complete("", folder)
    assert "'m'" in caught.value.message
    return caught.value.message


async def test_what_the_device_lacks_is_refused_by_name(tmp_path: Path) -> None:
    sum_of(tmp_path, [-1, 3])
    threads = await refused(ROWS + parameter("COMPILATION_NUM_THREADS", "2"), tmp_path, InvalidArgument)
    assert "parameter 'COMPILATION_NUM_THREADS'" in threads
    device = await refused(ROWS + parameter("TARGET_DEVICE", "NO_SUCH"), tmp_path, Unavailable)
    assert "OpenVINO finds no device NO_SUCH here; it has CPU" in device
    extension = await refused(ROWS + parameter("CPU_EXTENSION_PATH", "/no/such.so"), tmp_path, Internal)
    assert "/no/such.so" in extension


async def test_a_gpu_of_nvidia_is_not_for_it(tmp_path: Path) -> None:
    sum_of(tmp_path, [-1, 3])
    backend = OpenVinoBackend(spec_of(spec(ROWS, tmp_path).source, kind=InstanceKind.GPU))
    with pytest.raises(InvalidArgument, match="unable to load model 'm', Triton OpenVINO backend supports only Kind"):
        await backend.load()
    await backend.unload()


@pytest.mark.parametrize(
    ("key", "text", "name", "value"),
    [
        ("INFERENCE_NUM_THREADS", "1", "INFERENCE_NUM_THREADS", 1),
        ("NUM_STREAMS", "2", "NUM_STREAMS", 2),
        ("PERFORMANCE_HINT", "THROUGHPUT", "PERFORMANCE_HINT", "THROUGHPUT"),
        ("PERFORMANCE_HINT", "LATENCY", "PERFORMANCE_HINT", "LATENCY"),
    ],
)
async def test_parameters_reach_the_compiled_model(
    key: str, text: str, name: str, value: object, tmp_path: Path
) -> None:
    sum_of(tmp_path, [-1, 3])
    async with loaded(OpenVinoBackend, spec(ROWS + parameter(key, text), tmp_path)) as backend:
        assert isinstance(backend, OpenVinoBackend)
        compiled = backend._request.get_compiled_model()
        assert compiled.get_property(name) == value
        assert compiled.get_property("ENABLE_CPU_PINNING") is False
        (found,) = await infer(backend, request_of(("A", rows_of(2)), ("B", rows_of(2))))
        assert answer(found)["SUM"].tolist() == (2 * rows_of(2)).tolist()


async def test_an_instance_that_is_bound_to_cores_has_as_many_threads(tmp_path: Path) -> None:
    sum_of(tmp_path, [-1, 3])
    core = min(os.sched_getaffinity(0))
    bound = replace(spec(ROWS, tmp_path), cpu_cores=frozenset({core}))
    async with loaded(OpenVinoBackend, bound) as backend:
        assert isinstance(backend, OpenVinoBackend)
        compiled = backend._request.get_compiled_model()
        assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
        assert compiled.get_property("ENABLE_CPU_PINNING") is False
        (first,) = await infer(backend, request_of(("A", rows_of(2)), ("B", rows_of(2))))
        await infer(backend, request_of(("A", rows_of(3)), ("B", rows_of(3))))
        assert answer(first)["SUM"].tolist() == (2 * rows_of(2)).tolist()


async def test_instances_share_one_compiled_model(tmp_path: Path) -> None:
    sum_of(tmp_path, [-1, 3])
    shared = spec(ROWS, tmp_path)
    async with loaded(OpenVinoBackend, shared) as one, loaded(OpenVinoBackend, shared) as other:
        assert isinstance(one, OpenVinoBackend)
        assert isinstance(other, OpenVinoBackend)
        assert one._request is not other._request
        assert len(shared.source.shared) == 1
        for backend in (one, other):
            (found,) = await infer(backend, request_of(("A", rows_of(1)), ("B", rows_of(1))))
            assert answer(found)["SUM"].tolist() == (2 * rows_of(1)).tolist()


async def test_a_run_that_nobody_waits_for_ends_and_the_next_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_running(tmp_path)
    config = """
max_batch_size: 4000
input [ { name: "X" data_type: TYPE_FP32 dims: [ 256 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 256 ] } ]
"""
    ended: list[type[BaseException] | None] = []
    begun = trio.Event()
    token = trio.lowlevel.current_trio_token()
    run = OpenVinoBackend.run

    def watched(self: OpenVinoBackend, inputs: Any) -> Any:
        token.run_sync_soon(begun.set)
        try:
            found = run(self, inputs)
        except BaseException as error:
            ended.append(type(error))  # it keeps this frame, and with it the model
            raise
        ended.append(None)
        return found

    monkeypatch.setattr(OpenVinoBackend, "run", watched)
    async with loaded(OpenVinoBackend, spec(config, tmp_path)) as backend:
        request = request_of(("X", rows_of(4000, 256)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.execute, [request])
            await begun.wait()
            nursery.cancel_scope.cancel()
        (found,) = await infer(backend, request_of(("X", np.zeros((2, 256), np.float32))))
        assert answer(found)["Y"].shape == (2, 256)
    assert len(ended) == 2
    assert ended[0] is not None
    assert ended[1] is None


FIRST_USE = """
import threading
import numpy
import openvino
from openvino import opset13 as ops
import backends.openvino

barrier = threading.Barrier(4)
x = ops.parameter([-1, 3], openvino.Type.f32)
model = openvino.compile_model(openvino.Model([ops.relu(x)], [x], "m"), "CPU")
requests = [model.create_infer_request() for _ in range(4)]

def use(request):
    rows = numpy.ones((2, 3), numpy.float32)
    barrier.wait()
    request.start_async({0: rows}, share_inputs=True)
    request.wait()

threads = [threading.Thread(target=use, args=(request,)) for request in requests]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("used")
"""


async def test_threads_that_use_the_library_first_do_not_wait_for_each_other_for_ever() -> None:
    """Without what the backend does when it is imported, each of these hangs in one of three runs."""
    for _ in range(4):
        with trio.fail_after(60):
            done = await trio.run_process([sys.executable, "-c", FIRST_USE], capture_stdout=True)
        assert done.stdout == b"used\n"
