"""What a configuration takes from an engine, and whether the two agree in the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from backends.tensorrt.compatibility import check_compatible
from backends.tensorrt.completion import complete_from_engine
from backends.tensorrt.description import EngineDescription
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, ServerError, Unsupported
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt
from tests.backends.tensorrt.engine_models import engine, engine_tensor, rows_engine

ROWS = rows_engine((1, 4, 8))
TWO_PROFILES = rows_engine((1, 4, 8), (8, 16, 32))
FIXED = engine(engine_tensor("X", (2, 4)), engine_tensor("Y", (2, 4), output=True))
ONE_DIM = engine(engine_tensor("X", (-1,), ((1,), (2,), (8,))), engine_tensor("Y", (-1,), output=True))
SCALAR = engine(engine_tensor("X", ()), engine_tensor("Y", (), output=True))
UNEQUAL = engine(
    engine_tensor("X", (-1, 4), ((1, 4), (2, 4), (8, 4))),
    engine_tensor("Y", (1,), output=True, data_type=DataType.INT32),
)
SHAPES = engine(
    engine_tensor("X", (-1, -1), ((1, 1), (2, 2), (8, 8))),
    engine_tensor("SHAPE", (2,), ((1, 1), (2, 2), (8, 8)), shape_tensor=True, data_type=DataType.INT32),
    engine_tensor("Y", (-1, -1), output=True),
    engine_tensor("NEXT", (2,), output=True, shape_tensor=True, data_type=DataType.INT64),
)


def config_of(text: str) -> ModelConfig:
    return parse_pbtxt(f'name: "m" {text}', source="test")


def complete(text: str, description: EngineDescription, groups: Sequence[tuple[int, ...]] = ((0,),)) -> ModelConfig:
    return complete_from_engine(config_of(text), description, groups)


def dims(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {entry.name: entry.dims for entry in config.input} | {entry.name: entry.dims for entry in config.output}


def test_an_empty_configuration_gets_everything() -> None:
    found = complete("", ROWS)
    assert found.max_batch_size == 8
    assert found.dynamic_batching is not None
    assert dims(found) == {"X": (4,), "Y": (4,)}
    assert (found.input[0].data_type, found.output[0].data_type) == (DataType.FP32, DataType.FP32)
    check_compatible(found, ROWS, [(0,)])


@pytest.mark.parametrize(
    ("groups", "rows"), [([(0,)], 8), ([(1,)], 32), ([(0, 1)], 32), ([(0, 1), (0,)], 8), ([(1,), (0, 1)], 32)]
)
def test_the_largest_batch_is_what_every_group_can_take(groups: list[tuple[int, ...]], rows: int) -> None:
    found = complete("", TWO_PROFILES, groups)
    assert found.max_batch_size == rows
    check_compatible(found, TWO_PROFILES, groups)


def test_the_input_with_the_smallest_batch_counts() -> None:
    description = engine(
        engine_tensor("A", (-1, 4), ((1, 4), (1, 4), (6, 4))),
        engine_tensor("B", (-1, 4), ((1, 4), (1, 4), (9, 4))),
        engine_tensor("Y", (-1, 4), output=True),
    )
    assert complete("", description).max_batch_size == 6


@pytest.mark.parametrize(
    ("text", "has_batching"),
    [
        ("", True),
        ("max_batch_size: 1", True),
        ("sequence_batching { }", False),
        ("dynamic_batching { preferred_batch_size: 2 }", True),
    ],
)
def test_dynamic_batching_is_added_where_the_engine_batches(text: str, has_batching: bool) -> None:
    assert (complete(text, ROWS).dynamic_batching is not None) == has_batching


def test_an_engine_of_one_row_gets_no_dynamic_batching() -> None:
    assert complete("", rows_engine((1, 1, 1))).dynamic_batching is None


def test_a_lower_batch_is_kept_and_a_higher_one_refused() -> None:
    assert complete("max_batch_size: 3", ROWS).max_batch_size == 3
    with pytest.raises(InvalidArgument) as caught:
        complete("max_batch_size: 9", ROWS)
    assert caught.value.message == (
        "autofill failed for model 'm': configuration specified max-batch 9 but TensorRT engine only "
        "supports max-batch 8"
    )


def test_what_is_given_stays_and_the_rest_is_filled_tensor_by_tensor() -> None:
    two = engine(*ROWS.tensors, engine_tensor("B", (-1, 2), ((1, 2), (1, 2), (8, 2))))
    found = complete('input { name: "B" dims: [ 2, 1 ] reshape { shape: [ 2 ] } }', two)
    assert dims(found) == {"B": (2, 1), "X": (4,), "Y": (4,)}
    assert found.input[0].data_type is DataType.FP32
    assert found.input[0].reshape is not None
    check_compatible(found, two, [(0,)])


def test_outputs_that_are_left_out_stay_out() -> None:
    two = engine(*ROWS.tensors, engine_tensor("Z", (-1, 2), output=True))
    assert dims(complete('output { name: "Z" }', two)) == {"X": (4,), "Z": (2,)}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('input { name: "X" dims: [ 4 ] }', 8),
        ('input { name: "X" dims: [ -1, 4 ] }', 0),
        ('output { name: "Y" dims: [ -1, 4 ] }', 0),
    ],
)
def test_dims_of_the_full_rank_say_that_there_is_no_batch(text: str, rows: int) -> None:
    found = complete(text, ROWS)
    assert found.max_batch_size == rows
    assert (found.dynamic_batching is None) == (rows == 0)
    assert dims(found) == ({"X": (4,), "Y": (4,)} if rows else {"X": (-1, 4), "Y": (-1, 4)})
    check_compatible(found, ROWS, [(0,)])


def test_dims_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        complete('input { name: "X" dims: [ 4 ] } output { name: "Y" dims: [ -1, 4 ] }', ROWS)
    assert caught.value.message.startswith(
        "unable to autofill for 'm', model tensor configurations are contradicting each other in terms of whether "
        "batching is supported"
    )


def test_dims_that_want_a_batch_of_an_engine_without_are_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        complete('input { name: "X" dims: [ 4 ] }', UNEQUAL)
    assert caught.value.message == (
        "autofill failed for model 'm': model tensor shape configuration hints for dynamic batching but the underlying "
        "engine doesn't support batching."
    )


def test_an_engine_whose_outputs_have_no_batch_does_not_batch() -> None:
    found = complete("", UNEQUAL)
    assert found.max_batch_size == 0
    assert dims(found) == {"X": (-1, 4), "Y": (1,)}
    check_compatible(found, UNEQUAL, [(0,)])


def test_an_engine_of_a_fixed_number_of_rows_batches_up_to_it() -> None:
    found = complete("", FIXED)
    assert (found.max_batch_size, dims(found)) == (2, {"X": (4,), "Y": (4,)})
    check_compatible(found, FIXED, [(0,)])


def test_scalars_are_one_element() -> None:
    found = complete("", ONE_DIM)
    assert dims(found) == {"X": (1,), "Y": (1,)}
    assert [entry.backend_dims for entry in (found.input[0], found.output[0])] == [(), ()]
    check_compatible(found, ONE_DIM, [(0,)])
    found = complete("", SCALAR)
    assert (found.max_batch_size, dims(found), found.input[0].reshape) == (0, {"X": (1,), "Y": (1,)}, None)
    check_compatible(found, SCALAR, [(0,)])


def test_shape_tensors_are_marked_and_one_value_shorter() -> None:
    found = complete("", SHAPES)
    assert (found.max_batch_size, dims(found)) == (8, {"X": (-1,), "SHAPE": (1,), "Y": (-1,), "NEXT": (1,)})
    assert [entry.is_shape_tensor for entry in found.input] == [False, True]
    assert [entry.is_shape_tensor for entry in found.output] == [False, True]
    check_compatible(found, SHAPES, [(0,)])
    found = complete('input { name: "X" dims: [ -1, -1 ] }', SHAPES)
    assert (found.max_batch_size, dims(found)["SHAPE"], dims(found)["NEXT"]) == (0, (2,), (2,))
    check_compatible(found, SHAPES, [(0,)])


def test_controls_and_states_are_not_filled_in() -> None:
    description = engine(
        *ROWS.tensors,
        engine_tensor("START", (-1, 1), ((1, 1), (1, 1), (8, 1))),
        engine_tensor("STATE", (-1, 4), ((1, 4), (1, 4), (8, 4))),
        engine_tensor("NEXT", (-1, 4), output=True),
    )
    text = (
        'sequence_batching { control_input { name: "START" control { kind: CONTROL_SEQUENCE_START '
        'fp32_false_true: [ 0, 1 ] } } state { input_name: "STATE" output_name: "NEXT" data_type: TYPE_FP32 dims: 4 } }'
    )
    found = complete(text, description)
    assert dims(found) == {"X": (4,), "Y": (4,)}
    check_compatible(found, description, [(0,)])


def test_formats_other_than_linear_are_marked() -> None:
    description = engine(
        engine_tensor("X", (1, 3, 4, 4), format="CHW32"), engine_tensor("Y", (1, 3, 4, 4), output=True)
    )
    found = complete("", description)
    assert [found.input[0].is_non_linear_format_io, found.output[0].is_non_linear_format_io] == [True, False]


def test_names_that_the_engine_lacks_are_left_to_the_check() -> None:
    found = complete('output { name: "Z" data_type: TYPE_FP32 dims: 4 }', ROWS)
    assert dims(found) == {"X": (4,), "Z": (4,)}
    with pytest.raises(InvalidArgument, match="unexpected inference output 'Z', allowed outputs are: Y"):
        check_compatible(found, ROWS, [(0,)])


XY = 'input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }'
BAD = engine(engine_tensor("X", (-1, 4), ((1, 4), (2, 4), (8, 4)), data_type=DataType.INVALID), ROWS.outputs[0])


@pytest.mark.parametrize(
    ("text", "description", "kind", "says"),
    [
        (
            f"max_batch_size: 9 {XY}",
            ROWS,
            InvalidArgument,
            "configuration specified max-batch 9 but TensorRT engine only supports max-batch 8",
        ),
        (
            f"max_batch_size: 3 {XY}",
            FIXED,
            InvalidArgument,
            "configuration specified max-batch 3 but TensorRT engine only supports max-batch 2",
        ),
        (
            f"max_batch_size: 2 {XY.replace('4', '5')}",
            ROWS,
            InvalidArgument,
            "tensor 'X': the model expects 2 dimensions (shape [-1,4])",
        ),
        (
            f"max_batch_size: 2 {XY}",
            UNEQUAL,
            InvalidArgument,
            "expects datatype TYPE_FP32 for output 'Y', model provides TYPE_INT32",
        ),
        (
            f"max_batch_size: 2 {XY.replace('FP32', 'INT8')}",
            ROWS,
            InvalidArgument,
            "expects datatype TYPE_INT8 for input 'X', model provides TYPE_FP32",
        ),
        (f"max_batch_size: 2 {XY}", BAD, Internal, "unsupported datatype TYPE_FP32 for input 'X' for model 'm'"),
        (
            f"max_batch_size: 2 {XY.replace('4 ]', '4 ] is_shape_tensor: true')}",
            ROWS,
            InvalidArgument,
            "'X' is incorrectly specified as a shape tensor.",
        ),
        (
            "max_batch_size: 2 " + XY.replace('"Y"', '"NEXT"'),
            SHAPES,
            InvalidArgument,
            "model 'm', tensor 'NEXT': the engine has a shape tensor of this name; mark it",
        ),
        (
            f"max_batch_size: 1 {XY}",
            engine(engine_tensor("X", (1, 4), format="CHW32"), engine_tensor("Y", (1, 4), output=True)),
            Unsupported,
            "model 'm', input 'X': the engine wants the format CHW32, and only LINEAR is supported",
        ),
        (
            'max_batch_size: 2 output { name: "Y" data_type: TYPE_FP32 dims: 4 }',
            ROWS,
            InvalidArgument,
            "unable to load model 'm', configuration expects 0 inputs, model provides 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    text: str, description: EngineDescription, kind: type[ServerError], says: str
) -> None:
    with pytest.raises(kind) as caught:
        check_compatible(config_of(text), description, [(0,)])
    assert says in caught.value.message


def test_a_wrong_mark_of_a_shape_tensor_fails_the_completion() -> None:
    with pytest.raises(InvalidArgument, match="'X' is incorrectly specified as a shape tensor"):
        complete('input { name: "X" is_shape_tensor: true }', ROWS)


def test_an_output_that_is_not_configured_may_be_of_any_datatype() -> None:
    description = engine(*ROWS.tensors, engine_tensor("Z", (-1, 2), output=True, data_type=DataType.INVALID))
    check_compatible(config_of(f"max_batch_size: 8 {XY}"), description, [(0,)])
