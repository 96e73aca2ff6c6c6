"""Shapes that no tensor can have."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import InvalidArgument
from protocol.shapes import MAX_INT64, MAX_RANK, expected_byte_size

GOOD: list[tuple[DataType, list[int], int | None]] = [
    (DataType.FP32, [], 4),
    (DataType.FP32, [2, 3], 24),
    (DataType.BOOL, [5], 5),
    (DataType.BF16, [0, MAX_INT64], 0),
    (DataType.INT8, [MAX_INT64], MAX_INT64),
    (DataType.BYTES, [3], None),
    (DataType.UINT8, [1] * MAX_RANK, 1),
]


@pytest.mark.parametrize(("datatype", "shape", "size"), GOOD)
def test_byte_sizes(datatype: DataType, shape: list[int], size: int | None) -> None:
    assert expected_byte_size("x", datatype, shape) == size


WRONG: list[tuple[DataType, list[int], str]] = [
    (DataType.FP32, [-1], "invalid shape for input 'x': shape [-1] contains one or more invalid dimensions"),
    (DataType.FP32, [0, 2**63], f"shape [0,{2**63}] contains one or more invalid dimensions"),
    (DataType.FP32, [10**100], f"shape [{'1' + '0' * 23}] contains one or more invalid dimensions"),
    (
        DataType.INT8,
        [2**62, 2],
        f"invalid shape for input 'x': shape [{2**62},2] causes total element count to exceed maximum size of "
        f"{MAX_INT64}",
    ),
    (
        DataType.FP64,
        [2**60],
        f"byte size overflow for input 'x': element count ({2**60}) * data type size (8) exceeds maximum allowed size "
        f"({MAX_INT64})",
    ),
    (DataType.BYTES, [2**62], f"element count ({2**62}) * data type size (4) exceeds maximum allowed size"),
    (DataType.FP32, [1] * 65, "invalid shape for input 'x': expected at most 64 dimensions, got 65"),
]


@pytest.mark.parametrize(("datatype", "shape", "message"), WRONG)
def test_shapes_that_cannot_be(datatype: DataType, shape: list[int], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        expected_byte_size("x", datatype, shape)
    assert message in caught.value.message


@given(st.sampled_from(sorted(BY_PROTOCOL_NAME)), st.lists(st.integers(-(2**70), 2**70), max_size=70))
def test_any_shape_has_a_size_or_is_refused(name: str, shape: list[int]) -> None:
    """Whatever is accepted fits 64 bits; texts stay short."""
    datatype = BY_PROTOCOL_NAME[name]
    fits = (
        len(shape) <= MAX_RANK
        and all(0 <= dimension <= MAX_INT64 for dimension in shape)
        and math.prod(shape) * (datatype.itemsize or 4) <= MAX_INT64
    )
    if fits:
        size = expected_byte_size("x", datatype, shape)
        assert size == (None if datatype is DataType.BYTES else math.prod(shape) * datatype.itemsize)
    else:
        with pytest.raises(InvalidArgument) as caught:
            expected_byte_size("x", datatype, shape)
        assert len(caught.value.message) < 3000
