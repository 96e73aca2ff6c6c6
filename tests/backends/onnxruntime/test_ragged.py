"""Ragged batches, padding and batches of a fixed size on real sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from backends.interface import ModelSource
from backends.onnxruntime import OnnxRuntimeBackend
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.model_config import ModelParameter
from tests.backends.helpers import answer, infer, loaded, request_of, source_of, spec_of
from tests.backends.onnxruntime.onnx_models import identity, model, node, save, tensor

CONFIG = """
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] %s } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
RAGGED = (
    CONFIG % "allow_ragged_batch: true"
    + """
batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ENDS" data_type: TYPE_INT32 source_input: "X" }
batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }
"""
)


def with_ends(*shape: int | str, datatype: DataType = DataType.INT32) -> Any:
    """Y = X + the number of requests in the batch, which is the length of ENDS."""
    nodes = [
        node("Size", ["ENDS"], ["requests"]),
        node("Cast", ["requests"], ["count"], to=TensorProto.FLOAT),
        node("Add", ["X", "count"], ["Y"]),
    ]
    return model(nodes, [tensor("X", shape), tensor("ENDS", ["requests"], datatype)], [tensor("Y", shape)])


def ruled(source: ModelSource, rules: Any) -> ModelSource:
    source.config.parameters["shape_rules"] = ModelParameter(string_value=json.dumps(rules))
    return source


def row(*values: float) -> Any:
    return request_of(("X", np.array([values], np.float32)))


async def answers(source: ModelSource, *requests: Any) -> list[Any]:
    async with loaded(OnnxRuntimeBackend, spec_of(source)) as backend:
        return [answer(response)["Y"].tolist() for response in await infer(backend, *requests)]


async def refused(source: ModelSource) -> str:
    with pytest.raises(InvalidArgument) as caught:
        async with loaded(OnnxRuntimeBackend, spec_of(source)):
            pass
    return caught.value.message


async def test_a_ragged_batch(tmp_path: Path) -> None:
    source = source_of(RAGGED, save(with_ends("elements"), tmp_path))
    assert await answers(source, row(1, 2, 3), row(4), row(5, 6)) == [[[4, 5, 6]], [[7]], [[8, 9]]]
    assert await answers(source, row(1, 2)) == [[[2, 3]]]


async def test_what_a_ragged_model_must_offer_is_checked_at_load(tmp_path: Path) -> None:
    source = source_of(RAGGED, save(with_ends("batch", 4), tmp_path))
    assert await refused(source) == (
        "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input 'X', "
        "model provides [-1,4]"
    )
    source = source_of(RAGGED, save(with_ends("elements", datatype=DataType.INT64), tmp_path))
    assert await refused(source) == (
        "unable to load model 'm', the server makes input 'ENDS' with datatype TYPE_INT32, model provides TYPE_INT64"
    )
    source = source_of(RAGGED, save(identity(["elements"]), tmp_path))
    assert await refused(source) == (
        "unable to load model 'm', the server makes input 'ENDS' for each batch, but the model has no such input"
    )


async def test_a_mask_reaches_the_model(tmp_path: Path) -> None:
    """Y is the sum of what is not padding, for each row."""
    nodes = [
        node("Mul", ["X", "MASK"], ["masked"]),
        node("ReduceSum", ["masked", "axes"], ["Y"], keepdims=1),
    ]
    shape = ["batch", "length"]
    made = model(
        nodes,
        [tensor("X", shape), tensor("MASK", shape)],
        [tensor("Y", ["batch", 1])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    rules = {
        "inputs": {
            "X": {
                "dims": {"0": {"multiple": 4}},
                "pad_value": 1000,
                "mask": {"input": "MASK", "data_type": "TYPE_FP32"},
            }
        }
    }
    config = CONFIG.replace('"Y" data_type: TYPE_FP32 dims: [ -1 ]', '"Y" data_type: TYPE_FP32 dims: [ 1 ]') % ""
    source = ruled(source_of(config, save(made, tmp_path)), rules)
    assert await answers(source, row(1, 2, 3), row(4)) == [[[6]], [[4]]]


async def test_a_model_that_takes_one_number_of_rows_only(tmp_path: Path) -> None:
    """Its batches are filled up; without the rule it cannot batch."""
    directory = save(identity([8, 2]), tmp_path)
    config = CONFIG.replace("[ -1 ]", "[ 2 ]") % ""
    source = ruled(source_of(config, directory), {"batch": {"buckets": [8]}})
    assert await answers(source, row(1, 2), row(3, 4)) == [[[1, 2]], [[3, 4]]]
    assert "for the model to support batching" in await refused(source_of(config, directory))


async def test_such_a_model_is_completed(tmp_path: Path) -> None:
    source = ruled(source_of("max_batch_size: 8", save(identity([8, 2]), tmp_path)), {"batch": {"buckets": [8]}})
    completed = await OnnxRuntimeBackend.complete_config(source)
    assert (completed.max_batch_size, completed.input[0].dims, completed.output[0].dims) == (8, (2,), (2,))
    assert completed.dynamic_batching is not None


async def test_inputs_that_the_server_makes_are_not_completed(tmp_path: Path) -> None:
    batch_input = 'batch_input { target_name: "ENDS" data_type: TYPE_INT32 source_input: "X" }'
    source = source_of(batch_input, save(with_ends("elements"), tmp_path))
    completed = await OnnxRuntimeBackend.complete_config(source)
    assert [entry.name for entry in completed.input] == ["X"]
