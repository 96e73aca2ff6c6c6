"""Shape rules: reading, validation with texts that name the place, and what shapes become."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig, ModelParameter
from repository.pbtxt import parse_pbtxt
from repository.shape_rules import DimRule, fixed_rows, generated_inputs, read_shape_rules

TENSORS = """
name: "m" max_batch_size: 8
input [ { name: "IDS" data_type: TYPE_INT64 dims: [ -1, 4, -1 ] },
        { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] },
        { name: "IMAGE" data_type: TYPE_FP16 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
"""
RAGGED = 'input { name: "R" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }'


def config_of(rules: Any, more: str = "") -> ModelConfig:
    text = rules if isinstance(rules, str) else json.dumps(rules)
    config = parse_pbtxt(TENSORS + more, source="test")
    config.parameters["shape_rules"] = ModelParameter(string_value=text)
    return config


def ids(**rule: Any) -> dict[str, Any]:
    return {"inputs": {"IDS": {"dims": {"0": {"buckets": [4, 8]}}, **rule}}}


def test_a_model_without_rules_has_none() -> None:
    config = parse_pbtxt(TENSORS, source="test")
    assert read_shape_rules(config) is None
    assert generated_inputs(config) == {}
    assert fixed_rows(config) == 0


@pytest.mark.parametrize(
    ("rule", "sizes"),
    [
        (DimRule(buckets=(4, 8)), {0: 4, 1: 4, 4: 4, 5: 8, 8: 8, 9: None}),
        (DimRule(multiple=8), {0: 0, 1: 8, 8: 8, 9: 16, 1000: 1000, 1001: 1008}),
    ],
)
def test_what_a_size_becomes(rule: DimRule, sizes: dict[int, int | None]) -> None:
    assert {size: rule.padded(size) for size in sizes} == sizes


def test_what_a_shape_becomes() -> None:
    rules = read_shape_rules(
        config_of({"inputs": {"IDS": {"dims": {"0": {"buckets": [4, 8]}, "2": {"multiple": 10}}}}})
    )
    assert rules is not None
    assert rules.padded_shape("IDS", (3, 4, 11)) == (4, 4, 20)
    assert rules.padded_shape("TEXT", (3,)) == (3,)
    with pytest.raises(InvalidArgument, match=r"dimension 0 of input 'IDS' is 9, but the shape rules .* at most 8"):
        rules.padded_shape("IDS", (9, 4, 1))


def test_the_inputs_that_the_server_makes() -> None:
    rules = ids(mask={"input": "MASK", "data_type": "TYPE_INT64"}, length={"input": "LENGTH"})
    batch_input = 'batch_input { target_name: [ "A", "B" ] data_type: TYPE_FP32 source_input: "R" }'
    config = config_of(rules, RAGGED + batch_input)
    assert generated_inputs(config) == {
        "MASK": DataType.INT64,
        "LENGTH": DataType.INT32,
        "A": DataType.FP32,
        "B": DataType.FP32,
    }


@pytest.mark.parametrize(("buckets", "rows"), [([8], 8), ([4, 8], 0)])
def test_the_one_number_of_rows(buckets: list[int], rows: int) -> None:
    assert fixed_rows(config_of({"batch": {"buckets": buckets}})) == rows


@pytest.mark.parametrize(
    "rules",
    [
        ids(pad_value=-1),
        {"inputs": {"IMAGE": {"dims": {"0": {"multiple": 2}}, "pad_value": 0.5}}},
        {"inputs": {"TEXT": {"dims": {"0": {"multiple": 2}}, "pad_value": "[PAD]"}}},
        {"inputs": {"TEXT": {"dims": {"0": {"multiple": 2}}}}},
        {**ids(), "outputs": {"Y": {"dims": {"0": {"input": "IDS"}}}}},
        {"batch": {"multiple": 4}},
        {"batch": {"buckets": [1, 8]}},
    ],
)
def test_good_rules(rules: Any) -> None:
    assert read_shape_rules(config_of(rules)) is not None


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("{", ": is no JSON: "),
        ([], ": Expected `object`, got `array`"),
        ({"input": {}}, ": Object contains unknown field `input`"),
        ({"inputs": {"IDS": {"dims": {"0": {"buckets": ["4"]}}}}}, "Expected `int`, got `str`"),
        ({"inputs": {"IDS": {"dims": {"zero": {"multiple": 4}}}}}, "Expected `int`, got `str`"),
        (
            {"inputs": {"IDX": {"dims": {"0": {"multiple": 4}}}}},
            " at 'inputs.IDX': the model has no input 'IDX', but: 'IDS', 'IMAGE', 'TEXT'",
        ),
        ({"inputs": {"IDS": {"dims": {}}}}, " at 'inputs.IDS.dims': expected at least one dimension"),
        (
            {"inputs": {"IDS": {"dims": {"3": {"multiple": 4}}}}},
            " at 'inputs.IDS.dims': expected a dimension from 0 to 2, got 3",
        ),
        (
            {"inputs": {"IDS": {"dims": {"1": {"multiple": 4}}}}},
            " at 'inputs.IDS.dims.1': expected a dimension of variable size (-1 in 'dims'), got one of 4",
        ),
        (
            {"inputs": {"IDS": {"dims": {"0": {}}}}},
            " at 'inputs.IDS.dims.0': expected either 'buckets' or 'multiple'",
        ),
        (
            {"inputs": {"IDS": {"dims": {"0": {"multiple": 4, "buckets": [4]}}}}},
            " at 'inputs.IDS.dims.0': expected either 'buckets' or 'multiple'",
        ),
        (
            {"inputs": {"IDS": {"dims": {"0": {"multiple": -4}}}}},
            " at 'inputs.IDS.dims.0.multiple': expected a positive number, got -4",
        ),
        *(
            (
                {"inputs": {"IDS": {"dims": {"0": {"buckets": sizes}}}}},
                f" at 'inputs.IDS.dims.0.buckets': expected positive sizes in rising order, got {sizes}",
            )
            for sizes in ([8, 4], [4, 4], [0, 4])
        ),
        (ids(pad_value=1.5), " at 'inputs.IDS.pad_value': 1.5 is no value of TYPE_INT64"),
        (ids(pad_value="a"), " at 'inputs.IDS.pad_value': 'a' is no value of TYPE_INT64"),
        (
            {"inputs": {"TEXT": {"dims": {"0": {"multiple": 2}}, "pad_value": 7}}},
            " at 'inputs.TEXT.pad_value': 7 is no value of TYPE_STRING",
        ),
        (ids(mask={"input": "TEXT"}), " at 'inputs.IDS.mask.input': 'TEXT' is made by the server"),
        (
            ids(length={"input": "L", "data_type": "TYPE_STRING"}),
            " at 'inputs.IDS.length.data_type': expected one of TYPE_BOOL, ",
        ),
        (
            {**ids(), "outputs": {"Y": {"dims": {"0": {"input": "IDS", "dim": 2}}}}},
            " at 'outputs.Y.dims.0': expected a dimension that is padded, got dimension 2 of input 'IDS'",
        ),
        (
            {**ids(), "outputs": {"Y": {"dims": {"1": {"input": "IDS"}}}}},
            " at 'outputs.Y.dims.1': expected a dimension of variable size",
        ),
        ({**ids(), "outputs": {"Z": {"dims": {}}}}, " at 'outputs.Z': the model has no output 'Z', but: 'Y'"),
        ({"batch": {"buckets": [4]}}, " at 'batch.buckets': expected max_batch_size, 8, as the largest, got 4"),
        ({"batch": {"multiple": 3}}, " at 'batch.multiple': expected max_batch_size, 8, to be a multiple of it, got 3"),
    ],
)
def test_wrong_rules_say_where(rules: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_shape_rules(config_of(rules))
    assert caught.value.message.startswith("model 'm', parameter 'shape_rules'")
    assert reason in caught.value.message


def test_an_ensemble_has_none() -> None:
    with pytest.raises(InvalidArgument, match="an ensemble pads nothing"):
        read_shape_rules(config_of(ids(), 'platform: "ensemble"'))


def test_rules_and_ragged_batches_exclude_each_other() -> None:
    ragged = {"inputs": {"R": {"dims": {"0": {"multiple": 4}}}}}
    with pytest.raises(InvalidArgument, match="input 'R' has 'allow_ragged_batch', so it is not padded"):
        read_shape_rules(config_of(ragged, RAGGED))
    with pytest.raises(InvalidArgument, match="a batch that is ragged is not filled up"):
        read_shape_rules(config_of({"batch": {"multiple": 4}}, RAGGED))
