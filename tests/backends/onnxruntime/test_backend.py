"""The onnxruntime backend on real sessions: datatypes, shapes, batches, failures, instances."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import trio
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from backends.interface import Backend, ModelSource
from backends.onnxruntime import OnnxRuntimeBackend
from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import Cancelled, Internal, InvalidArgument, Overloaded, ServerError, Unavailable, Unsupported
from protocol.messages import InferenceRequest
from repository.model_config import InstanceKind
from tests.backends.helpers import answer, infer, loaded, objects, request_of, source_of, spec_of, threads_ended
from tests.backends.onnxruntime.onnx_models import counting, identity, model, node, save, tensor

BATCHED = """
max_batch_size: 8
input [ {{ name: "X" data_type: {type} dims: {dims} }} ]
output [ {{ name: "Y" data_type: {type} dims: {dims} }} ]
"""
PLAIN = BATCHED.replace("max_batch_size: 8\n", "")


async def answers(source: ModelSource, *requests: Any) -> list[dict[str, NDArray[Any]]]:
    """Load one instance, run the requests as one batch, unload."""
    async with loaded(OnnxRuntimeBackend, spec_of(source)) as backend:
        return [answer(response) for response in await infer(backend, *requests)]


async def refused(source: ModelSource) -> ServerError:
    """The error of a load that must fail."""
    with pytest.raises(ServerError) as caught:
        async with loaded(OnnxRuntimeBackend, spec_of(source)):
            pass
    return caught.value


def sample(datatype: DataType, shape: tuple[int, ...]) -> NDArray[Any]:
    count = int(np.prod(shape))
    if datatype is DataType.BYTES:
        return objects(*(f"é\0{index}".encode() * (index % 3) for index in range(count))).reshape(shape)
    return (
        (np.arange(count) % 2 if datatype is DataType.BOOL else np.arange(count)).astype(datatype.dtype).reshape(shape)
    )


@pytest.mark.parametrize("datatype", list(BY_PROTOCOL_NAME.values()), ids=lambda datatype: datatype.name)
async def test_every_datatype_goes_in_and_comes_out_batched(datatype: DataType, tmp_path: Path) -> None:
    directory = save(identity(["N", "M"], datatype), tmp_path)
    source = source_of(BATCHED.format(type=datatype.value, dims="[ -1 ]"), directory)
    arrays = [sample(datatype, (rows, 3)) for rows in (1, 2, 3)]
    for given_array, output in zip(arrays, await answers(source, *(request_of(("X", a)) for a in arrays)), strict=True):
        assert output["Y"].dtype == given_array.dtype
        np.testing.assert_array_equal(output["Y"], given_array)


@pytest.mark.parametrize("datatype", list(BY_PROTOCOL_NAME.values()), ids=lambda datatype: datatype.name)
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1)])
async def test_every_datatype_with_few_or_no_elements(
    datatype: DataType, shape: tuple[int, ...], tmp_path: Path
) -> None:
    directory = save(identity(["N", "M"], datatype), tmp_path)
    array = sample(datatype, shape)
    (output,) = await answers(
        source_of(PLAIN.format(type=datatype.value, dims="[ -1, -1 ]"), directory), request_of(("X", array))
    )
    assert output["Y"].shape == shape
    np.testing.assert_array_equal(output["Y"], array)


async def test_special_numbers_pass_unchanged(tmp_path: Path) -> None:
    directory = save(identity(["N"]), tmp_path)
    array = np.array([np.nan, np.inf, -np.inf, -0.0, np.finfo(np.float32).tiny / 2], np.float32)
    (output,) = await answers(
        source_of(PLAIN.format(type="TYPE_FP32", dims="[ -1 ]"), directory), request_of(("X", array))
    )
    assert output["Y"].tobytes() == array.tobytes()


async def test_bf16_is_computed_with_and_mixes_with_other_types(tmp_path: Path) -> None:
    made = model(
        [
            node("Cast", ["X"], ["F"], to=TensorProto.FLOAT),
            node("Mul", ["F", "S"], ["P"]),
            node("Cast", ["P"], ["Y"], to=TensorProto.BFLOAT16),
        ],
        [tensor("X", ["N"], DataType.BF16), tensor("S", ["N"])],
        [tensor("Y", ["N"], DataType.BF16), tensor("P", ["N"])],
    )
    config = """
        input [ { name: "X" data_type: TYPE_BF16 dims: [ -1 ] }, { name: "S" data_type: TYPE_FP32 dims: [ -1 ] } ]
        output [ { name: "Y" data_type: TYPE_BF16 dims: [ -1 ] }, { name: "P" data_type: TYPE_FP32 dims: [ -1 ] } ]
    """
    x, s = np.array([1.5, -2, 0.125]).astype(ml_dtypes.bfloat16), np.array([2, 3, 4], np.float32)
    (output,) = await answers(source_of(config, save(made, tmp_path)), request_of(("X", x), ("S", s)))
    assert output["Y"].astype(np.float32).tolist() == [3, -6, 0.5]
    assert output["P"].tolist() == [3, -6, 0.5]


async def test_strings_that_are_not_utf8_fail_their_request_alone(tmp_path: Path) -> None:
    source = source_of(
        BATCHED.format(type="TYPE_STRING", dims="[ 1 ]"), save(identity(["N", 1], DataType.BYTES), tmp_path)
    )
    async with loaded(OnnxRuntimeBackend, spec_of(source)) as backend:
        good, bad = (request_of(("X", objects(value).reshape(1, 1))) for value in ("é".encode(), b"\xff"))
        first, second, third = await infer(backend, good, bad, good)
    assert answer(first)["Y"].tolist() == answer(third)["Y"].tolist() == [["é".encode()]]
    assert isinstance(second, InvalidArgument)
    assert "model 'm' takes text as input 'X'" in second.message


async def test_scalars_are_one_element_outside_and_rank_0_inside(tmp_path: Path) -> None:
    made = model([node("Mul", ["X", "X"], ["Y"])], [tensor("X", [])], [tensor("Y", [])])
    source = source_of(PLAIN.format(type="TYPE_FP32", dims="[ 1 ]"), save(made, tmp_path))
    (output,) = await answers(source, request_of(("X", np.array([3], np.float32))))
    assert output["Y"].tolist() == [9]


async def test_scalars_keep_any_number_of_ones_that_the_configuration_gives(tmp_path: Path) -> None:
    source = source_of(PLAIN.format(type="TYPE_FP32", dims="[ 1, 1 ]"), save(identity([]), tmp_path))
    (output,) = await answers(source, request_of(("X", np.array([[3]], np.float32))))
    assert output["Y"].shape == (1, 1)
    refusal = await refused(source_of(PLAIN.format(type="TYPE_FP32", dims="[ 2 ]"), tmp_path))
    assert "scalar tensor 'X', should only provide 1 in the model configuration" in refusal.message


async def test_a_scalar_per_row_is_reshaped(tmp_path: Path) -> None:
    config = BATCHED.format(type="TYPE_FP32", dims="[ 1 ] reshape { shape: [ ] }")
    arrays = [np.array([[1], [2]], np.float32), np.array([[3]], np.float32)]
    outputs = await answers(source_of(config, save(identity(["N"]), tmp_path)), *(request_of(("X", a)) for a in arrays))
    assert [output["Y"].tolist() for output in outputs] == [[[1], [2]], [[3]]]


async def test_dynamic_shapes_may_differ_from_batch_to_batch(tmp_path: Path) -> None:
    made = model([node("ReduceSum", ["X"], ["Y"], keepdims=0)], [tensor("X", ["N", "M"])], [tensor("Y", [])])
    config = """
        input [ { name: "X" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
    """
    async with loaded(OnnxRuntimeBackend, spec_of(source_of(config, save(made, tmp_path)))) as backend:
        for shape in ((1, 1), (3, 2), (2, 500)):
            (response,) = await infer(backend, request_of(("X", np.ones(shape, np.float32))))
            assert answer(response)["Y"].tolist() == [shape[0] * shape[1]]


async def test_an_absent_optional_input_has_the_models_own_value(tmp_path: Path) -> None:
    made = model(
        [node("Add", ["X", "W"], ["Y"])],
        [tensor("X", [2]), tensor("W", [2])],
        [tensor("Y", [2])],
        [numpy_helper.from_array(np.array([10, 20], np.float32), "W")],
    )
    config = PLAIN.format(type="TYPE_FP32", dims="[ 2 ]")
    optional = config + 'input [ { name: "W" data_type: TYPE_FP32 dims: [ 2 ] optional: true } ]'
    x = np.array([1, 2], np.float32)
    async with loaded(OnnxRuntimeBackend, spec_of(source_of(optional, save(made, tmp_path)))) as backend:
        (absent,) = await infer(backend, request_of(("X", x)))
        (present,) = await infer(backend, request_of(("X", x), ("W", x)))
    assert answer(absent)["Y"].tolist() == [11, 22]
    assert answer(present)["Y"].tolist() == [2, 4]
    assert (await answers(source_of(config, tmp_path), request_of(("X", x))))[0]["Y"].tolist() == [11, 22]


async def test_only_configured_outputs_are_computed_and_only_requested_ones_answered(tmp_path: Path) -> None:
    made = model(
        [node("Identity", ["X"], ["A"]), node("Neg", ["X"], ["B"]), node("Abs", ["X"], ["C"])],
        [tensor("X", ["N", 1])],
        [tensor(name, ["N", 1]) for name in "ABC"],
    )
    config = """
        max_batch_size: 4
        input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
        output [ { name: "B" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "A" data_type: TYPE_FP32 dims: [ 1 ] } ]
    """
    x = np.array([[2]], np.float32)
    both, one = await answers(
        source_of(config, save(made, tmp_path)), request_of(("X", x)), request_of(("X", x), outputs=("B",))
    )
    assert {name: array.tolist() for name, array in both.items()} == {"A": [[2]], "B": [[-2]]}
    assert {name: array.tolist() for name, array in one.items()} == {"B": [[-2]]}


async def test_a_request_that_the_model_cannot_compute_fails_alone(tmp_path: Path) -> None:
    made = model(
        [node("GatherElements", ["X", "I"], ["Y"], axis=1)],
        [tensor("X", ["N", 3]), tensor("I", ["N", 1], DataType.INT64)],
        [tensor("Y", ["N", 1])],
    )
    config = """
        max_batch_size: 4
        input [ { name: "X" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "I" data_type: TYPE_INT64 dims: [ 1 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
    """
    x = np.array([[5, 6, 7]], np.float32)
    requests = [request_of(("X", x), ("I", np.array([[index]], np.int64))) for index in (0, 99, 2)]
    async with loaded(OnnxRuntimeBackend, spec_of(source_of(config, save(made, tmp_path)))) as backend:
        first, second, third = await infer(backend, *requests)
    assert (answer(first)["Y"].tolist(), answer(third)["Y"].tolist()) == ([[5]], [[7]])
    assert isinstance(second, Internal)
    assert "Out of range value in index tensor" in second.message


async def test_dims_that_the_configuration_allows_but_the_model_does_not_are_the_clients_mistake(
    tmp_path: Path,
) -> None:
    made = model([node("Identity", ["X"], ["Y"])], [tensor("X", ["N", "M", 2])], [tensor("Y", ["N", "M", 2])])
    source = source_of(PLAIN.format(type="TYPE_FP32", dims="[ -1, -1, 2 ]"), save(made, tmp_path))
    async with loaded(OnnxRuntimeBackend, spec_of(source)) as backend:
        (response,) = await infer(backend, request_of(("X", np.zeros((1, 1, 3), np.float32))))
    assert isinstance(response, InvalidArgument)
    assert response.message.startswith("onnx runtime error 2: Got invalid dimensions for input: X")


async def test_a_run_that_fails_in_the_model_is_internal_and_the_instance_serves_on(tmp_path: Path) -> None:
    made = model(
        [node("Reshape", ["X", "S"], ["Y"])],
        [tensor("X", ["N"]), tensor("S", [2], DataType.INT64)],
        [tensor("Y", ["A", "B"])],
    )
    config = """
        input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "S" data_type: TYPE_INT64 dims: [ 2 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
    """
    x = np.arange(6, dtype=np.float32)
    async with loaded(OnnxRuntimeBackend, spec_of(source_of(config, save(made, tmp_path)))) as backend:
        (failure,) = await infer(backend, request_of(("X", x), ("S", np.array([4, 4], np.int64))))
        (response,) = await infer(backend, request_of(("X", x), ("S", np.array([2, 3], np.int64))))
    assert isinstance(failure, Internal)
    assert failure.message.startswith("onnx runtime error 1: Non-zero status code returned while running Reshape node")
    assert answer(response)["Y"].shape == (2, 3)


@pytest.mark.parametrize("arena", ["true", "false"])
async def test_a_run_that_needs_more_memory_than_there_is_fails_alone(arena: str, tmp_path: Path) -> None:
    made = model(
        [node("Expand", ["X", "N"], ["Y"])],
        [tensor("X", [1]), tensor("N", [1], DataType.INT64)],
        [tensor("Y", ["A"])],
    )
    config = f"""
        input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }}, {{ name: "N" data_type: TYPE_INT64 dims: [ 1 ] }} ]
        output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
        parameters {{ key: "enable_mem_arena" value {{ string_value: "{arena}" }} }}
    """
    x = np.ones(1, np.float32)
    async with loaded(OnnxRuntimeBackend, spec_of(source_of(config, save(made, tmp_path)))) as backend:
        (failure,) = await infer(backend, request_of(("X", x), ("N", np.array([10**15], np.int64))))
        (response,) = await infer(backend, request_of(("X", x), ("N", np.array([3], np.int64))))
    assert isinstance(failure, Overloaded)
    assert failure.message.startswith("onnx runtime, model 'm': no memory left: ")
    assert answer(response)["Y"].tolist() == [1, 1, 1]


async def test_an_output_of_unknown_rank_takes_the_configurations_shape(tmp_path: Path) -> None:
    made = model([node("Identity", ["X"], ["Y"])], [tensor("X", None)], [tensor("Y", None)])
    source = source_of(PLAIN.format(type="TYPE_FP32", dims="[ -1, 2 ]"), save(made, tmp_path))
    array = np.ones((3, 2), np.float32)
    assert (await answers(source, request_of(("X", array))))[0]["Y"].tolist() == array.tolist()


# What is wrong with a model's directory or configuration ------------------------------------------------------------


async def test_a_missing_file_is_named_with_its_path(tmp_path: Path) -> None:
    refusal = await refused(source_of("", tmp_path))
    assert isinstance(refusal, Unavailable)
    assert refusal.message == f"unable to find '{tmp_path}/1/model.onnx' for model instance 'm'"


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        (b"", "onnx runtime error"),
        (b"this is no model", "onnx runtime error 7: .*[Pp]rotobuf parsing failed"),
        (identity(["N"]).SerializeToString()[:-20], "onnx runtime error"),
        (
            model([node("NoSuch", ["X"], ["Y"])], [tensor("X", [1])], [tensor("Y", [1])]).SerializeToString(),
            "onnx runtime error 10: .*NoSuch",
        ),
    ],
    ids=["empty", "noise", "cut", "unknown operator"],
)
async def test_a_file_that_cannot_be_loaded_says_why(contents: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(contents)
    with pytest.raises(Internal, match=f"(?s){text}.*model 'm'"):
        async with loaded(OnnxRuntimeBackend, spec_of(source_of("", tmp_path))):
            pass
    with pytest.raises(Internal, match=f"(?s){text}.*model 'm'"):
        await OnnxRuntimeBackend.complete_config(source_of("", tmp_path))


WRONG = [
    # configuration, kind, text
    (
        PLAIN.format(type="TYPE_FP64", dims="[ 2 ]"),
        "expects datatype TYPE_FP64 for input 'X', model provides TYPE_FP32",
    ),
    (PLAIN.format(type="TYPE_FP32", dims="[ 3 ]"), "the model expects 1 dimensions \\(shape \\[2\\]\\)"),
    (PLAIN.format(type="TYPE_FP32", dims="[ 2, 2 ]"), "the model expects 1 dimensions"),
    (
        PLAIN.format(type="TYPE_FP32", dims="[ 2 ]").replace('"X"', '"Z"'),
        "unexpected inference input 'Z', allowed inputs are: X",
    ),
    (
        PLAIN.format(type="TYPE_FP32", dims="[ 2 ]").replace('"Y"', '"Z"'),
        "unexpected inference output 'Z', allowed outputs are: Y",
    ),
    (
        BATCHED.format(type="TYPE_FP32", dims="[ 2 ]"),
        "the first dimension must be -1; but shape expected by the model is \\[2\\]",
    ),
    (
        PLAIN.format(type="TYPE_FP32", dims="[ 2 ]").replace("dims", "optional: true dims", 1),
        "doesn't support optional input",
    ),
    ('output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] } ]', "configuration expects 0 inputs, model provides 1"),
]


@pytest.mark.parametrize(("config", "text"), WRONG)
async def test_a_configuration_that_contradicts_the_model_is_refused(config: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=text):
        async with loaded(OnnxRuntimeBackend, spec_of(source_of(config, save(identity([2]), tmp_path)))):
            pass


async def test_parameters_reach_the_session_and_wrong_ones_fail_the_load(tmp_path: Path) -> None:
    config = PLAIN.format(type="TYPE_FP32", dims="[ 2 ]")
    good = """
        parameters { key: "intra_op_thread_count" value { string_value: "1" } }
        parameters { key: "execution_mode" value { string_value: "1" } }
        parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0" } }
        optimization { graph { level: 2 } }
    """
    directory = save(identity([2]), tmp_path)
    x = np.array([1, 2], np.float32)
    assert (await answers(source_of(config + good, directory), request_of(("X", x))))[0]["Y"].tolist() == [1, 2]
    bad = 'parameters { key: "execution_mode" value { string_value: "5" } }'
    assert "execution_mode are 0 or 1 but got 5" in (await refused(source_of(config + bad, directory))).message
    library = f'model_operations {{ op_library_filename: "{tmp_path}/none.so" }}'
    assert "none.so" in (await refused(source_of(config + library, directory))).message


async def test_a_gpu_instance_without_the_gpu_package_says_what_to_install(tmp_path: Path) -> None:
    spec = spec_of(source_of("", save(identity([2]), tmp_path)), kind=InstanceKind.GPU)
    with pytest.raises(Unavailable, match=r"needs CUDAExecutionProvider.*pip install 'trioton\[gpu\]'"):
        async with loaded(OnnxRuntimeBackend, spec):
            pass


async def test_sequences_at_the_boundary_are_unsupported(tmp_path: Path) -> None:
    output = helper.make_tensor_sequence_value_info("Y", TensorProto.FLOAT, None)
    save(model([node("SequenceConstruct", ["X"], ["Y"])], [tensor("X", ["N"])], [output]), tmp_path)
    text = "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'Y', expected 'ONNX_TYPE_TENSOR'."
    with pytest.raises(Unsupported, match=text):
        await OnnxRuntimeBackend.complete_config(source_of("", tmp_path))


async def test_strings_beside_bf16_are_refused_at_load(tmp_path: Path) -> None:
    made = model(
        [node("Identity", ["X"], ["Y"]), node("Identity", ["S"], ["T"])],
        [tensor("X", [1], DataType.BF16), tensor("S", [1], DataType.BYTES)],
        [tensor("Y", [1], DataType.BF16), tensor("T", [1], DataType.BYTES)],
    )
    source = source_of("", save(made, tmp_path))
    completed = await OnnxRuntimeBackend.complete_config(source)
    refusal = await refused(ModelSource("m", 1, tmp_path, completed))
    assert isinstance(refusal, Unsupported)


# Where the file may be ----------------------------------------------------------------------------------------------


async def test_the_default_model_file_name_is_followed(tmp_path: Path) -> None:
    config = 'default_model_filename: "other.onnx"' + PLAIN.format(type="TYPE_FP32", dims="[ 1 ]")
    source = source_of(config, save(identity([1]), tmp_path, "other.onnx"))
    x = np.array([4], np.float32)
    assert (await answers(source, request_of(("X", x))))[0]["Y"].tolist() == [4]


async def test_a_directory_holds_the_model_and_its_external_weights(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.arange(1000, dtype=np.float32), "W")
    made = model([node("Add", ["X", "W"], ["Y"])], [tensor("X", [1000])], [tensor("Y", [1000])], [weights])
    directory = save(
        made, tmp_path, "model.onnx/model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    assert (directory / "1" / "model.onnx" / "weights.bin").stat().st_size == 4000
    source = source_of(PLAIN.format(type="TYPE_FP32", dims="[ 1000 ]"), directory)
    (output,) = await answers(source, request_of(("X", np.zeros(1000, np.float32))))
    assert output["Y"][999] == 999


async def test_a_directory_without_the_file_is_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "1" / "model.onnx").mkdir(parents=True)
    assert (await refused(source_of("", tmp_path))).message == (
        f"unable to find '{tmp_path}/1/model.onnx/model.onnx' for model instance 'm'"
    )


# Completion ---------------------------------------------------------------------------------------------------------


async def test_a_model_without_configuration_is_completed_and_then_loads(tmp_path: Path) -> None:
    made = model(
        [node("MatMul", ["X", "W"], ["Y"])],
        [tensor("X", ["batch", 3])],
        [tensor("Y", ["batch", 2])],
        [numpy_helper.from_array(np.ones((3, 2), np.float32), "W")],
    )
    completed = await OnnxRuntimeBackend.complete_config(source_of("", save(made, tmp_path)))
    assert completed.max_batch_size == 4
    assert completed.dynamic_batching is not None
    source = ModelSource("m", 1, tmp_path, completed)
    assert (await answers(source, request_of(("X", np.ones((2, 3), np.float32)))))[0]["Y"].tolist() == [[3, 3], [3, 3]]


async def test_a_model_that_cannot_batch_is_completed_without(tmp_path: Path) -> None:
    completed = await OnnxRuntimeBackend.complete_config(source_of("", save(identity([2, None]), tmp_path)))
    assert (completed.max_batch_size, completed.input[0].dims) == (0, (2, -1))
    with pytest.raises(InvalidArgument, match="model does not support batching while non-zero max_batch_size"):
        await OnnxRuntimeBackend.complete_config(source_of("max_batch_size: 2", tmp_path))


async def test_a_tensor_without_a_shape_is_not_guessed(tmp_path: Path) -> None:
    # The session infers what shapes it can, so this takes an operator whose result's rank depends on data.
    made = model(
        [node("Reshape", ["X", "S"], ["Y"])],
        [tensor("X", ["N"]), tensor("S", ["K"], DataType.INT64)],
        [tensor("Y", None)],
    )
    directory = save(made, tmp_path)
    with pytest.raises(InvalidArgument, match="declares output 'Y' without a shape; give the configuration its own"):
        await OnnxRuntimeBackend.complete_config(source_of("", directory))
    given = 'output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]'
    completed = await OnnxRuntimeBackend.complete_config(source_of(given, directory))
    assert [entry.name for entry in completed.input] == ["X", "S"]
    x, shape = np.arange(4, dtype=np.float32), np.array([2, 2], np.int64)
    (output,) = await answers(ModelSource("m", 1, directory, completed), request_of(("X", x), ("S", shape)))
    assert output["Y"].shape == (2, 2)


# Instances ----------------------------------------------------------------------------------------------------------


def test_cpu_models_get_two_instances_where_the_configuration_gives_no_count() -> None:
    assert OnnxRuntimeBackend.default_cpu_instance_count == 2


async def test_several_instances_run_at_the_same_time(tmp_path: Path) -> None:
    """Each instance has a thread and a session of its own, so batches on two of them overlap."""
    source = source_of(PLAIN.format(type="TYPE_FP32", dims="[ -1 ]"), save(identity(["N"]), tmp_path))
    meeting = threading.Barrier(2, timeout=30)

    class Meeting(OnnxRuntimeBackend):
        def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            meeting.wait()
            return super().run(inputs)

    async with loaded(Meeting, spec_of(source)) as one, loaded(Meeting, spec_of(source)) as two:

        async def drive(backend: Backend, value: float) -> None:
            for _ in range(20):
                (response,) = await infer(backend, request_of(("X", np.array([value], np.float32))))
                assert answer(response)["Y"].tolist() == [value]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drive, one, 1.0)
            nursery.start_soon(drive, two, 2.0)


def library_threads() -> int:
    """The threads of this process that are not Python's own: the library's pools. 0 where the system does not tell."""
    tasks = Path("/proc/self/task")
    return len(os.listdir(tasks)) - threading.active_count() if tasks.is_dir() else 0


async def test_loading_and_unloading_leaves_no_thread_behind(tmp_path: Path) -> None:
    source = source_of(PLAIN.format(type="TYPE_FP32", dims="[ -1 ]"), save(identity(["N"]), tmp_path))
    request = request_of(("X", np.zeros(1, np.float32)))
    before = library_threads()
    for _ in range(15):
        await answers(source, request)
        await refused(source_of("", tmp_path / "none"))
    await threads_ended("m_0_0")
    with trio.move_on_after(5):
        while library_threads() > before:  # noqa: ASYNC110 (the system lists a thread for a moment after its end)
            await trio.sleep(0.01)
    assert library_threads() <= before


async def test_a_run_ends_when_all_of_its_callers_have_gone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Within a loop that would take for ever; nothing is printed, and the next batch runs."""
    config = """
        max_batch_size: 8
        input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "N" data_type: TYPE_INT64 dims: [ 1 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
    """

    def ask(rounds: int) -> InferenceRequest:
        return request_of(("X", np.zeros((1, 1), np.float32)), ("N", np.array([[rounds]], np.int64)))

    class Announcing(OnnxRuntimeBackend):
        running = threading.Event()

        def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            self.running.set()
            return super().run(inputs)

    found: list[object] = []
    async with loaded(Announcing, spec_of(source_of(config, save(counting(), tmp_path)))) as backend:
        endless = [ask(10**15), ask(1)]

        async def run() -> None:
            found.extend(await infer(backend, *endless))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.to_thread.run_sync(Announcing.running.wait)
            for request in endless:
                backend.cancel(request)
        (response,) = await infer(backend, ask(3))
    assert [type(each) for each in found] == [Cancelled, Cancelled]
    assert answer(response)["Y"].tolist() == [[3.0]]
    assert capfd.readouterr().err == ""
