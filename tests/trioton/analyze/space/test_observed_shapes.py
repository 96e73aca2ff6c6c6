"""Shape rules that are made of observed shapes."""

from __future__ import annotations

import json
from typing import Any

from protocol.datatypes import DataType
from repository.model_config import ModelConfig, ModelInput, ModelOutput, ModelParameter
from repository.shape_rules import read_shape_rules
from trioton.analyze.space.observed_shapes import ObservedRequest, shape_rules_of

SIZES = (5, 17, 40, 90)


def config(**fields: Any) -> ModelConfig:
    made: dict[str, Any] = {
        "max_batch_size": 8,
        "input": (ModelInput("IDS", DataType.INT64, dims=(-1,)),),
        "output": (ModelOutput("TAGS", DataType.FP32, dims=(-1, 9)),),
    }
    return ModelConfig(**{**made, **fields})


def seen(sizes: tuple[int, ...] = SIZES) -> list[ObservedRequest]:
    return [ObservedRequest({"IDS": (size,)}, {"TAGS": (size, 9)}) for size in sizes]


def test_sizes_that_vary_are_padded_and_outputs_cut_back() -> None:
    text = shape_rules_of(config(), seen())
    assert json.loads(text) == {
        "inputs": {"IDS": {"dims": {"0": {"multiple": 16}}}},
        "outputs": {"TAGS": {"dims": {"0": {"input": "IDS", "dim": 0}}}},
    }
    rules = read_shape_rules(config(parameters={"shape_rules": ModelParameter(text)}))
    assert rules is not None
    assert rules.padded_shape("IDS", (17,)) == (32,)
    assert rules.padded_shape("IDS", (100_000,)) == (100_000,)  # nothing is refused


def test_where_there_is_nothing_to_pad() -> None:
    assert shape_rules_of(config(), []) == ""
    assert shape_rules_of(config(), seen((5, 5))) == ""
    ragged = (ModelInput("IDS", DataType.INT64, dims=(-1,), allow_ragged_batch=True),)
    assert shape_rules_of(config(input=ragged), seen()) == ""


def test_an_output_whose_size_follows_from_nothing_is_not_padded() -> None:
    found = [ObservedRequest({"IDS": (size,)}, {"TAGS": (size * size % 7, 9)}) for size in SIZES]
    assert shape_rules_of(config(), found) == ""


def test_small_sizes() -> None:
    assert json.loads(shape_rules_of(config(), seen((1, 2))))["inputs"]["IDS"]["dims"]["0"] == {"multiple": 1}
