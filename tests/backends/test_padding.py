"""Padding requests by shape rules, and trimming responses back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.padding import Padding
from protocol.errors import Internal
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import ModelConfig, ModelParameter
from repository.pbtxt import parse_pbtxt
from repository.shape_rules import read_shape_rules
from tests.backends.helpers import answer, objects, request_of

CONFIG = """
name: "m" max_batch_size: {batch}
input [ {{ name: "IDS" data_type: TYPE_INT64 dims: [ -1 ] }},
        {{ name: "GRID" data_type: TYPE_FP32 dims: [ -1, 2, -1 ] optional: true }},
        {{ name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] optional: true }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ -1, 3 ] }}, {{ name: "Z" data_type: TYPE_FP32 dims: [ 3 ] }} ]
"""
BUCKETS = {"0": {"buckets": [4, 8]}}


def padding(rules: Any, *, batch: int = 8) -> Padding:
    config: ModelConfig = parse_pbtxt(CONFIG.format(batch=batch), source="test")
    config.parameters["shape_rules"] = ModelParameter(string_value=json.dumps(rules))
    read = read_shape_rules(config)
    assert read is not None
    return Padding(read, config)


def arrays(request: InferenceRequest) -> dict[str, Any]:
    return {tensor.name: tensor.as_numpy() for tensor in request.inputs}


def test_values_stay_in_front_and_the_request_as_it_was() -> None:
    request = request_of(("IDS", np.array([[1, 2, 3], [4, 5, 6]])), request_id="r", outputs=("Y",))
    padded = padding({"inputs": {"IDS": {"dims": BUCKETS, "pad_value": -1}}}).pad(request)
    assert arrays(padded)["IDS"].tolist() == [[1, 2, 3, -1], [4, 5, 6, -1]]
    assert (padded.id, padded.requested_outputs) == ("r", ("Y",))
    assert request.inputs[0].shape == (2, 3)


def test_a_tensor_of_the_right_size_is_not_copied() -> None:
    request = request_of(("IDS", np.array([[1, 2, 3, 4]])))
    assert padding({"inputs": {"IDS": {"dims": BUCKETS}}}).pad(request).inputs[0] is request.inputs[0]


def test_several_dimensions_with_mask_and_length() -> None:
    rule = {
        "dims": {"0": {"multiple": 3}, "2": {"multiple": 2}},
        "mask": {"input": "MASK", "data_type": "TYPE_BOOL"},
        "length": {"input": "LENGTH"},
    }
    grid = np.ones((2, 2, 2, 1), np.float32)
    padded = arrays(padding({"inputs": {"GRID": rule}}).pad(request_of(("GRID", grid))))
    assert padded["GRID"].shape == (2, 3, 2, 2)
    assert padded["GRID"].sum() == grid.sum()
    assert padded["MASK"].tolist() == [[[True, False], [True, False], [False, False]]] * 2
    assert padded["LENGTH"].tolist() == [[2, 1], [2, 1]]
    assert padded["LENGTH"].dtype == np.int32


@pytest.mark.parametrize(("rule", "filler"), [({}, b""), ({"pad_value": "[PAD]"}, b"[PAD]")])
def test_strings(rule: dict[str, Any], filler: bytes) -> None:
    request = request_of(("TEXT", objects(b"a", b"bc", b"").reshape(1, 3)))
    padded = padding({"inputs": {"TEXT": {"dims": BUCKETS, **rule}}}).pad(request)
    assert arrays(padded)["TEXT"].tolist() == [[b"a", b"bc", b"", filler]]


def test_an_optional_input_that_is_absent_stays_absent() -> None:
    request = request_of(("IDS", np.array([[1]])))
    rules = {"inputs": {"IDS": {"dims": BUCKETS}, "TEXT": {"dims": BUCKETS, "mask": {"input": "MASK"}}}}
    assert set(arrays(padding(rules).pad(request))) == {"IDS"}


def test_without_a_batch_dimension() -> None:
    rules = {
        "inputs": {"IDS": {"dims": BUCKETS, "mask": {"input": "MASK"}}},
        "outputs": {"Y": {"dims": {"0": {"input": "IDS"}}}},
    }
    made, request = padding(rules, batch=0), request_of(("IDS", np.array([1, 2, 3])))
    padded = arrays(made.pad(request))
    assert (padded["IDS"].tolist(), padded["MASK"].tolist()) == ([1, 2, 3, 0], [1, 1, 1, 0])
    response = InferenceResponse("m", 1, [Tensor.from_numpy("Y", np.zeros((4, 3), np.float32))])
    assert answer(made.trim(request, response))["Y"].shape == (3, 3)


TRIM = {"inputs": {"IDS": {"dims": BUCKETS}}, "outputs": {"Y": {"dims": {"0": {"input": "IDS"}}}}}


@given(rows=st.integers(1, 3), length=st.integers(1, 8))
def test_what_a_model_does_element_by_element_comes_back_as_if_nothing_were_padded(rows: int, length: int) -> None:
    ids = np.arange(rows * length).reshape(rows, length)
    made, request = padding(TRIM), request_of(("IDS", ids))
    padded = arrays(made.pad(request))["IDS"]
    assert padded.shape == (rows, 4 if length <= 4 else 8)
    outputs = [Tensor.from_numpy("Y", np.repeat(padded[:, :, None], 3, axis=2).astype(np.float32))]
    response = made.trim(request, InferenceResponse("m", 1, outputs, "id"))
    np.testing.assert_array_equal(answer(response)["Y"], np.repeat(ids[:, :, None], 3, axis=2))
    assert response.id == "id"


def test_outputs_without_a_rule_stay_as_they_are() -> None:
    response = InferenceResponse("m", 1, [Tensor.from_numpy("Z", np.zeros((1, 3), np.float32))])
    trimmed = padding(TRIM).trim(request_of(("IDS", np.array([[1]]))), response)
    assert trimmed.outputs[0] is response.outputs[0]


@pytest.mark.parametrize("shape", [(1, 2, 3), (1,)])
def test_an_output_that_is_too_small_is_the_models_fault(shape: tuple[int, ...]) -> None:
    response = InferenceResponse("m", 1, [Tensor.from_numpy("Y", np.zeros(shape, np.float32))])
    with pytest.raises(Internal, match="output 'Y': the shape rules trim dimension 0 to the 3 of input 'IDS'"):
        padding(TRIM).trim(request_of(("IDS", np.array([[1, 2, 3]]))), response)
