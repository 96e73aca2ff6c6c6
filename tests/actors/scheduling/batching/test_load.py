"""What the configuration says about batching, from the load to the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, Tensor
from tests.actors.core.test_server_core import add_model, running

CONFIG = """
backend: "fake" max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def parameter(key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(text)} }} }}'


SHAPE_RULES = parameter(
    "shape_rules",
    {
        "inputs": {"IN": {"dims": {"0": {"multiple": 4}}}},
        "outputs": {"OUT": {"dims": {"0": {"input": "IN"}}}},
    },
)


def row(*values: float) -> InferenceRequest:
    return InferenceRequest("m", [Tensor.from_numpy("IN", np.array([values], np.float32))])


async def test_a_model_with_shape_rules_gets_padded_requests_and_its_responses_are_trimmed(tmp_path: Path) -> None:
    add_model(tmp_path, "m", config=CONFIG + "dynamic_batching { }" + SHAPE_RULES)
    async with running(tmp_path) as core:
        response = await core.infer(row(1, 2, 3))
        assert response.outputs[0].as_numpy().tolist() == [[1, 2, 3]]
        (snapshot,) = core.snapshots()
        assert snapshot.flushes == {"full": 0, "preferred": 0, "timeout": 0, "idle_instance": 1, "shape": 0}


async def test_a_model_that_does_not_batch_counts_no_flushes(tmp_path: Path) -> None:
    add_model(tmp_path, "m", config=CONFIG)
    async with running(tmp_path) as core:
        await core.infer(row(1))
        (snapshot,) = core.snapshots()
        assert snapshot.flushes == {}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            'batch_input { target_name: "N" data_type: TYPE_INT32 source_input: "IN" }',
            "model 'm' has 'batch_input', but backend 'fake' gets the requests of a batch as they are",
        ),
        ('batch_output { target_name: "OUT" source_input: "IN" }', "model 'm' has 'batch_output'"),
        (
            parameter("shape_rules", {"batch": {"buckets": [4]}}),
            "model 'm' has 'parameters['shape_rules'].batch', but backend 'fake'",
        ),
        (parameter("shape_rules", {"inputs": {"X": {"dims": {}}}}), "the model has no input 'X', but: 'IN'"),
        ("dynamic_batching { }" + parameter("adaptive_batching", "soon"), "got 'soon'"),
        (parameter("adaptive_batching", "1000"), "needs 'dynamic_batching'"),
        ("sequence_batching { }" + parameter("adaptive_batching", "1000"), "needs 'dynamic_batching'"),
    ],
)
async def test_what_cannot_be_followed_is_refused_at_load(more: str, reason: str, tmp_path: Path) -> None:
    add_model(tmp_path, "m", config=CONFIG + more)
    async with running(tmp_path) as core:
        (entry,) = await core.repository_index()
        assert entry.state == "UNAVAILABLE"
        assert reason in entry.reason


async def test_adaptive_batching_serves(tmp_path: Path) -> None:
    add_model(tmp_path, "m", config=CONFIG + "dynamic_batching { }" + parameter("adaptive_batching", "20000"))
    async with running(tmp_path) as core:
        for value in range(10):
            response = await core.infer(row(value))
            assert response.outputs[0].as_numpy().tolist() == [[value]]


async def test_a_size_past_the_largest_bucket_is_the_clients_mistake(tmp_path: Path) -> None:
    rules = parameter("shape_rules", {"inputs": {"IN": {"dims": {"0": {"buckets": [2]}}}}})
    add_model(tmp_path, "m", config=CONFIG + rules)
    async with running(tmp_path) as core:
        with pytest.raises(InvalidArgument, match="dimension 0 of input 'IN' is 3"):
            await core.infer(row(1, 2, 3))
        assert (await core.infer(row(1))).outputs[0].shape == (1, 2), "without a rule for it an output keeps its size"
