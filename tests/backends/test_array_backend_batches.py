"""Array backends with ragged inputs and shape rules: what reaches the model, and what comes back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.array_backend import ArrayBackend
from backends.interface import InstanceSpec
from protocol.errors import InvalidArgument, ServerError
from protocol.messages import InferenceRequest
from repository.model_config import ModelParameter
from tests.backends.helpers import answer, infer, loaded, request_of, source_of, spec_of

RAGGED = """
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true },
        { name: "SCALE" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] } ]
batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "ENDS" data_type: TYPE_INT32
              source_input: "X" }
batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }
"""
RULED = """
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


class Ragged(ArrayBackend):
    """Y = 2 * X, and SUM = sum(X) * SCALE of each request; refuses negative numbers. Notes what it gets."""

    def load_model(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.seen.append({name: array.tolist() for name, array in inputs.items()})
        x, ends = inputs["X"], inputs["ENDS"]
        if (x < 0).any():
            raise InvalidArgument("X must not be negative")
        sums = np.array([x[ends[i] : ends[i + 1]].sum() for i in range(len(ends) - 1)], np.float32)
        return {"Y": x * 2, "SUM": sums[:, None] * inputs["SCALE"]}


class Masked(Ragged):
    """Y = 2 * X, SUM = the sum of what the mask says."""

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.seen.append({name: array.tolist() for name, array in inputs.items()})
        x = inputs["X"]
        mask = inputs.get("MASK", np.ones_like(x))
        return {"Y": x * 2, "SUM": (x * mask).sum(axis=1, keepdims=True).astype(np.float32)}


def ragged(*values: float) -> InferenceRequest:
    return request_of(("X", np.array([values], np.float32)), ("SCALE", np.array([[10]], np.float32)))


def plain(*rows: list[float]) -> InferenceRequest:
    return request_of(("X", np.array(rows, np.float32)))


def ruled(rules: Any) -> InstanceSpec:
    spec = spec_of(source_of(RULED))
    spec.config.parameters["shape_rules"] = ModelParameter(string_value=json.dumps(rules))
    return spec


async def test_requests_of_different_lengths_are_one_run_over_flat_tensors() -> None:
    async with loaded(Ragged, spec_of(source_of(RAGGED))) as backend:
        assert isinstance(backend, Ragged)
        results = await infer(backend, ragged(1, 2, 3), ragged(4), ragged())
        assert backend.seen == [
            {"X": [1.0, 2.0, 3.0, 4.0], "SCALE": [[10.0], [10.0], [10.0]], "ENDS": [0, 3, 4, 4]},
        ]
        assert [answer(result)["Y"].tolist() for result in results] == [[[2, 4, 6]], [[8]], [[]]]
        assert [answer(result)["SUM"].tolist() for result in results] == [[[60]], [[40]], [[0]]]


async def test_a_single_request_is_flat_as_well() -> None:
    async with loaded(Ragged, spec_of(source_of(RAGGED))) as backend:
        assert isinstance(backend, Ragged)
        (result,) = await infer(backend, ragged(1, 2))
        assert backend.seen == [{"X": [1.0, 2.0], "SCALE": [[10.0]], "ENDS": [0, 2]}]
        assert answer(result)["Y"].tolist() == [[2, 4]]


async def test_a_refused_ragged_batch_is_tried_one_by_one() -> None:
    async with loaded(Ragged, spec_of(source_of(RAGGED))) as backend:
        results = await infer(backend, ragged(1, 2), ragged(-1), ragged(5))
        texts = [r.message if isinstance(r, ServerError) else answer(r)["SUM"].tolist() for r in results]
        assert texts == [[[30]], "X must not be negative", [[50]]]


async def test_padded_requests_share_a_run_and_get_their_own_lengths_back() -> None:
    rules = {
        "inputs": {
            "X": {
                "dims": {"0": {"buckets": [4, 8]}},
                "pad_value": 100,
                "mask": {"input": "MASK", "data_type": "TYPE_FP32"},
            }
        },
        "outputs": {"Y": {"dims": {"0": {"input": "X"}}}},
    }
    async with loaded(Masked, ruled(rules)) as backend:
        assert isinstance(backend, Masked)
        results = await infer(backend, plain([1, 2, 3]), plain([4], [5]))
        assert backend.seen == [
            {
                "X": [[1, 2, 3, 100], [4, 100, 100, 100], [5, 100, 100, 100]],
                "MASK": [[1, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0]],
            }
        ]
        assert [answer(result)["Y"].tolist() for result in results] == [[[2, 4, 6]], [[8], [10]]]
        assert [answer(result)["SUM"].tolist() for result in results] == [[[6]], [[4], [5]]]


async def test_batches_are_filled_up_to_the_rows_that_the_rules_want() -> None:
    async with loaded(Masked, ruled({"batch": {"buckets": [2, 8]}})) as backend:
        assert isinstance(backend, Masked)
        await infer(backend, plain([1]), plain([2]))
        results = await infer(backend, plain([1], [2]), plain([3]))
        assert [len(seen["X"]) for seen in backend.seen] == [2, 8]
        assert backend.seen[1]["X"] == [[1], [2], [3], [3], [3], [3], [3], [3]]
        assert [answer(result)["Y"].tolist() for result in results] == [[[2], [4]], [[6]]]
