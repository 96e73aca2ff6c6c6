"""Classification: the best classes of an output as texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import Tensor, decode_bytes_elements
from protocol.tensors.classification import MAX_ELEMENTS, classify

INTEGERS = [np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64]


def classes(array: Any, k: int, labels: Sequence[str] = (), *, has_batch: bool = False) -> tuple[Any, list[str]]:
    """The shape, and the elements as texts."""
    result = classify(Tensor.from_numpy("o", np.asarray(array)), k, labels, has_batch)
    assert (result.name, result.datatype) == ("o", DataType.BYTES)
    return result.shape, [element.decode() for element in decode_bytes_elements(result.data)]


@pytest.mark.parametrize(
    ("array", "k", "shape", "expected"),
    [
        (np.array(dtype=np.float32, object=[0.1, 0.7, 0.2]), 2, (2,), ["0.700000:1", "0.200000:2"]),
        (
            np.array(dtype=np.float64, object=[1e-7, -1.5, 2e20]),
            3,
            (3,),
            ["200000000000000000000.000000:2", "0.000000:0", "-1.500000:1"],
        ),
        (np.array(dtype=np.int32, object=[5, -3, 5]), 9, (3,), ["5:0", "5:2", "-3:1"]),
        (np.array(dtype=np.uint64, object=[2**64 - 1, 0]), 1, (1,), ["18446744073709551615:0"]),
        (np.array(dtype=np.int8, object=[-128, 127]), 2, (2,), ["127:1", "-128:0"]),
        (
            np.array(dtype=np.float32, object=[np.nan, 1, np.inf, -np.inf, np.nan]),
            5,
            (5,),
            ["inf:2", "1.000000:1", "-inf:3", "nan:0", "nan:4"],
        ),
        (np.array(dtype=np.int64, object=[[1, 9], [4, 2]]), 2, (2,), ["9:1", "4:2"]),
        (np.array(dtype=np.int64, object=[]), 3, (0,), []),
        (np.array(dtype=np.int64, object=7), 3, (1,), ["7:0"]),
    ],
)
def test_without_a_batch(array: Any, k: int, shape: tuple[int, ...], expected: list[str]) -> None:
    """All elements of the output are one entry, whatever its shape; of equals the first comes first."""
    assert classes(array, k) == (shape, expected)


@pytest.mark.parametrize(
    ("array", "k", "shape", "expected"),
    [
        (np.array(dtype=np.int32, object=[[1, 3, 2], [9, 8, 7]]), 2, (2, 2), ["3:1", "2:2", "9:0", "8:1"]),
        (np.array(dtype=np.int32, object=[[[1, 4], [3, 2]]]), 9, (1, 4), ["4:1", "3:2", "2:3", "1:0"]),
        (np.zeros((0, 5), np.int32), 2, (0, 2), []),
        (np.zeros((2, 0), np.int32), 2, (2, 0), []),
        (np.array(dtype=np.int32, object=[5, 6]), 2, (2, 1), ["5:0", "6:0"]),
    ],
)
def test_with_a_batch(array: Any, k: int, shape: tuple[int, ...], expected: list[str]) -> None:
    """Each entry of the first dimension is ranked alone."""
    assert classes(array, k, has_batch=True) == (shape, expected)


def test_labels() -> None:
    """Those that are missing or empty are left out."""
    _, found = classes(np.array(dtype=np.int32, object=[3, 2, 1]), 3, ["größe", ""])
    assert found == ["3:0:größe", "2:1", "1:2"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_type(dtype: type[Any]) -> None:
    bounds = np.iinfo(dtype)
    assert classes(np.array([bounds.min, bounds.max], dtype), 2)[1] == [f"{bounds.max}:1", f"{bounds.min}:0"]


@pytest.mark.slow
@given(st.lists(st.floats(width=32), max_size=20), st.integers(0, 25))
def test_the_order_is_that_of_a_stable_sort(values: list[float], k: int) -> None:
    """By falling value, NaN last."""
    _, found = classes(np.array(values, np.float32), k)
    ranked = sorted(
        range(len(values)), key=lambda i: (np.isnan(values[i]), -values[i] if values[i] == values[i] else 0)
    )
    assert [int(text.split(":")[1]) for text in found] == ranked[:k]


@pytest.mark.parametrize("datatype", [DataType.BOOL, DataType.FP16, DataType.BF16, DataType.BYTES])
def test_other_types_are_refused(datatype: DataType) -> None:
    with pytest.raises(InvalidArgument) as caught:
        classify(Tensor("o", datatype, (0,), b""), 1, (), False)
    assert caught.value.message.startswith(
        f"class result not available for output due to unsupported type '{datatype.name}'"
    )


def test_too_many_elements_are_refused() -> None:
    size = MAX_ELEMENTS + 1
    with pytest.raises(InvalidArgument, match=r"^classification output tensor too large"):
        classify(Tensor("o", DataType.INT8, (size,), bytes(size)), 1, (), False)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((0, 3), (0, 2)), ((2, 0), (2, 0)), ((0,), (0, 1)), ((0, 0, 4), (0, 0)), ((3, 2, 0), (3, 0))],
)
def test_batches_without_elements(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert classes(np.zeros(shape, np.float32), 2, has_batch=True) == (expected, [])


def test_a_scalar_is_no_batch() -> None:
    with pytest.raises(InvalidArgument, match="output 'o': expected the batch as its first dimension, got a scalar"):
        classes(np.float32(7), 1, has_batch=True)
