"""Ragged batches: what is made for a batch, and how flat outputs are cut up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.batch_tensors import BatchInputs, BatchOutputs
from protocol.errors import Internal, Unsupported
from repository.model_config import BatchInputKind, ModelConfig
from repository.pbtxt import parse_pbtxt
from tests.backends.helpers import objects, request_of

RAGGED = """
name: "m" max_batch_size: {batch}
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ -1, 2 ] allow_ragged_batch: true }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ -1, 2 ] }}, {{ name: "Z" data_type: TYPE_STRING dims: [ 3 ] }} ]
batch_output [ {{ target_name: "Y" source_input: "X" }}, {{ target_name: "Z" source_input: "X" }} ]
"""


def config_of(*kinds: BatchInputKind, data_type: str = "TYPE_INT32", batch: int = 8) -> ModelConfig:
    entries = " ".join(
        f'batch_input {{ kind: {kind.value} target_name: "{kind.name}" data_type: {data_type} source_input: "X" }}'
        for kind in kinds
    )
    return parse_pbtxt(RAGGED.format(batch=batch) + entries, source="test")


def x(rows: int, length: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.zeros((rows, length, 2), np.float32)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (BatchInputKind.ELEMENT_COUNT, [6, 8]),
        (BatchInputKind.ACCUMULATED_ELEMENT_COUNT, [6, 14]),
        (BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, [0, 6, 14]),
        (BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE, [0] * 8),
        (BatchInputKind.ITEM_SHAPE, [[3, 2], [2, 2], [2, 2]]),
        (BatchInputKind.ITEM_SHAPE_FLATTEN, [3, 2, 2, 2, 2, 2]),
    ],
)
@pytest.mark.parametrize(("data_type", "dtype"), [("TYPE_INT32", np.int32), ("TYPE_FP32", np.float32)])
def test_every_kind(kind: BatchInputKind, expected: object, data_type: str, dtype: type) -> None:
    """Of a batch of one request with one row of 3 times 2 elements, and one with two rows of 2 times 2."""
    made = BatchInputs(config_of(kind, data_type=data_type)).arrays(
        [request_of(("X", x(1, 3))), request_of(("X", x(2, 2)))]
    )
    assert made[kind.name].tolist() == expected
    assert made[kind.name].dtype == dtype


def test_one_entry_may_have_several_targets() -> None:
    text = 'batch_input { target_name: [ "A", "B" ] data_type: TYPE_INT32 source_input: "X" }'
    made = BatchInputs(parse_pbtxt(RAGGED.format(batch=8) + text, source="test")).arrays([request_of(("X", x(1, 3)))])
    assert {name: array.tolist() for name, array in made.items()} == {"A": [6], "B": [6]}


def test_without_a_batch_dimension_the_whole_shape_is_the_items() -> None:
    config = config_of(BatchInputKind.ITEM_SHAPE, batch=0)
    made = BatchInputs(config).arrays([request_of(("X", np.zeros((3, 2), np.float32)))])
    assert made["ITEM_SHAPE"].tolist() == [[3, 2]]


@given(shapes=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=6))
def test_the_offsets_find_every_requests_elements_again(shapes: list[tuple[int, int]]) -> None:
    config = config_of(BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO)
    arrays = [np.full((rows, length, 2), number, np.float32) for number, (rows, length) in enumerate(shapes)]
    requests = [request_of(("X", array)) for array in arrays]
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    offsets = next(iter(BatchInputs(config).arrays(requests).values()))
    for number, array in enumerate(arrays):
        np.testing.assert_array_equal(flat[offsets[number] : offsets[number + 1]], array.reshape(-1))
    entry = config.output[0]
    for array, part in zip(arrays, BatchOutputs(config).scatter(entry, flat, requests), strict=True):
        np.testing.assert_array_equal(part.as_numpy(), array)


def test_a_dimension_that_the_output_fixes_is_its_own() -> None:
    """Only -1 is taken from the source; here the batch dimension alone."""
    config = config_of()
    texts = objects(*(str(number).encode() for number in range(9)))
    parts = BatchOutputs(config).scatter(
        config.output[1], texts, [request_of(("X", x(1, 5))), request_of(("X", x(2, 0)))]
    )
    assert [part.as_numpy().tolist() for part in parts] == [
        [[b"0", b"1", b"2"]],
        [[b"3", b"4", b"5"], [b"6", b"7", b"8"]],
    ]


def test_elements_that_are_missing_are_the_models_fault() -> None:
    config = config_of()
    with pytest.raises(Unsupported, match=r"output tensor 'Y' .* expected at least 6 elements in model output, got 5"):
        BatchOutputs(config).scatter(config.output[0], np.zeros(5, np.float32), [request_of(("X", x(1, 3)))])


def test_a_source_that_gives_no_sizes_is_named() -> None:
    config = config_of()
    with pytest.raises(Internal, match=r"output 'Y': expected input 'X' to give the sizes of shape \[-1, -1, 2\]"):
        BatchOutputs(config).scatter(config.output[0], np.zeros(5, np.float32), [request_of()])
