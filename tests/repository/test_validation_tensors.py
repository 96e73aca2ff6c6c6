"""Rules for inputs, outputs, batch inputs and batch outputs."""

from __future__ import annotations

import pytest

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, Unsupported
from repository.model_config import ModelConfig, ModelOutput
from repository.pbtxt import parse_pbtxt
from repository.validation_tensors import validate_tensors

VALID = 'name: "X" data_type: TYPE_FP32'


def config_of(text: str) -> ModelConfig:
    return parse_pbtxt(f'name: "m" {text}', source="test")


# What both an input and an output can break: the fields, max_batch_size, and the text between `model input ` and
# ` for m`.
SHARED = [
    ("", 0, "must specify 'name'"),
    ('name: "X"', 0, "'X' must specify 'data_type'"),
    ('name: "X" data_type: TYPE_INVALID dims: 1', 0, "'X' must specify 'data_type'"),
    (VALID, 0, "'X' must specify 'dims'"),
    *(
        (
            f"{VALID} dims: [ 2, {dim} ]",
            0,
            "'X' dimension must be integer >= 1, or -1 to indicate a variable-size dimension",
        )
        for dim in (0, -2)
    ),
    (
        f"{VALID} dims: 1 reshape {{ shape: [ 1, 0 ] }}",
        8,
        "'X' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension",
    ),
    (
        f"{VALID} dims: 1 reshape {{}}",
        0,
        "'X' cannot have empty reshape for non-batching model as scalar tensors are not supported",
    ),
    (f"{VALID} dims: 2 reshape {{}}", 8, "'X' has different size for dims and reshape"),
    (f"{VALID} dims: [ 2, 3 ] reshape {{ shape: 5 }}", 0, "'X' has different size for dims and reshape"),
    (f"{VALID} dims: [ -1 ] reshape {{ shape: 5 }}", 0, "'X' has different size for dims and reshape"),
    (f"{VALID} dims: [ 5 ] reshape {{ shape: [ 5, -1 ] }}", 0, "'X' has different size for dims and reshape"),
    (
        f"{VALID} dims: [ -1, -1 ] reshape {{ shape: -1 }}",
        0,
        "'X' has different number of variable-size dimensions for dims and reshape",
    ),
    (
        f"{VALID} dims: [ 2, -1, 6 ] reshape {{ shape: [ 6, -1, 2 ] }}",
        0,
        "'X' has different size for dims and reshape",
    ),
]


@pytest.mark.parametrize("which", ["input", "output"])
@pytest.mark.parametrize(("fields", "max_batch_size", "body"), SHARED)
def test_rules_of_inputs_and_outputs(which: str, fields: str, max_batch_size: int, body: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate_tensors(config_of(f"max_batch_size: {max_batch_size} {which} {{ {fields} }}"))
    assert caught.value.message == f"model {which} {body} for m"


@pytest.mark.parametrize("which", ["input", "output"])
@pytest.mark.parametrize(
    ("fields", "max_batch_size"),
    [
        ("dims: [ 1, -1, 3 ]", 0),
        ("dims: 1 reshape {}", 8),
        ("dims: [ 1, 1 ] reshape {}", 8),
        ("dims: [ 2, 3 ] reshape { shape: [ 3, 1, 2 ] }", 0),
        ("dims: [ 2, -1, 6, -1 ] reshape { shape: [ 2, 1, -1, 3, 2, -1 ] }", 0),
        ("dims: [ -1 ] reshape { shape: [ 1, -1 ] }", 0),
    ],
)
def test_good_tensors_pass(which: str, fields: str, max_batch_size: int) -> None:
    validate_tensors(config_of(f"max_batch_size: {max_batch_size} {which} {{ {VALID} {fields} }}"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"input {{ {VALID} dims: [ 1, 2 ] format: FORMAT_NHWC }}", "model input NHWC/NCHW require 3 dims for m"),
        *(
            (
                f"{which} {{ {VALID} dims: 1 is_shape_tensor: true }}",
                "shape tensors are only supported for TensorRT platform for m",
            )
            for which in ("input", "output")
        ),
        *(
            (
                f"{which} {{ {VALID} dims: 1 is_non_linear_format_io: true }}",
                "Non-linear IO format is only supported for the TensorRT platform for m",
            )
            for which in ("input", "output")
        ),
        *(
            (
                f'platform: "tensorrt_plan" {which} {{ {VALID} dims: 1 is_non_linear_format_io: true }}',
                f"Non-linear IO format {which} requires 3 dims for m",
            )
            for which in ("input", "output")
        ),
    ],
)
def test_rules_of_special_tensors(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate_tensors(config_of(text))
    assert caught.value.message == message


def test_special_tensors_of_tensorrt_pass() -> None:
    validate_tensors(
        config_of(
            f'platform: "tensorrt_plan" input {{ {VALID} dims: 1 is_shape_tensor: true }} '
            f"output {{ {VALID} dims: [ 1, 2, 3 ] is_non_linear_format_io: true }}"
        )
    )


@pytest.mark.parametrize("path", ["../labels", "/etc/passwd", "a/../../labels", ".."])
def test_a_label_file_outside_the_model_directory_is_refused(path: str) -> None:
    output = ModelOutput(name="OUT", data_type=DataType.FP32, dims=(1,), label_filename=path)
    with pytest.raises(Unsupported) as caught:
        validate_tensors(ModelConfig(name="m", output=(output,)))
    assert caught.value.message == (
        f"label file path '{path}' for output 'OUT' in model 'm' is outside model directory"
    )


@pytest.mark.parametrize("path", ["", "labels.txt", "a/labels", "a/../labels", "..labels"])
def test_a_label_file_in_the_model_directory_passes(path: str) -> None:
    output = ModelOutput(name="OUT", data_type=DataType.FP32, dims=(1,), label_filename=path)
    validate_tensors(ModelConfig(name="m", output=(output,)))


TENSORS = f"input {{ {VALID} dims: -1 }} output {{ {VALID} dims: -1 }}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_FP32 }",
            "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m",
        ),
        (
            'batch_input { data_type: TYPE_FP32 source_input: [ "X", "X" ] }',
            "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 2 for m",
        ),
        (
            'batch_input { data_type: TYPE_FP32 source_input: "Y" }',
            "unknown source input name 'Y' for m",
        ),
        (
            'batch_input { data_type: TYPE_INT64 source_input: "X" }',
            "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
        ),
        (
            'batch_output { target_name: "X" }',
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 for m",
        ),
        ('batch_output { target_name: "X" source_input: "Y" }', "unknown source input name 'Y' for m"),
        ('batch_output { target_name: "Y" source_input: "X" }', "unknown target output name 'Y' for m"),
        (
            'batch_output { target_name: "X" source_input: "X" } batch_output { target_name: "X" source_input: "X" }',
            "target output name 'X' can only be specified once for m",
        ),
    ],
)
def test_rules_of_batch_inputs_and_outputs(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate_tensors(config_of(f"{TENSORS} {text}"))
    assert caught.value.message == message


def test_good_batch_inputs_and_outputs_pass() -> None:
    validate_tensors(
        config_of(
            f'{TENSORS} batch_input {{ data_type: TYPE_INT32 target_name: "N" source_input: "X" }} '
            'batch_output { target_name: "X" source_input: "X" }'
        )
    )
