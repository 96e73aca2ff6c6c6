"""Where a batch lies in a graph's larger tensors."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backends.tensorrt.regions import pieces

SIZES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=4)


@given(SIZES)
def test_every_element_is_where_numpy_has_it(sizes: list[tuple[int, int]]) -> None:
    smaller = tuple(size for size, _ in sizes)
    larger = tuple(size + more for size, more in sizes)
    expected = np.zeros(larger, int)
    values = np.arange(1, math.prod(smaller) + 1).reshape(smaller)
    expected[tuple(slice(size) for size in smaller)] = values
    flat = np.zeros(math.prod(larger), int)
    for inner, outer, length in pieces(smaller, larger):
        flat[outer : outer + length] = values.reshape(-1)[inner : inner + length]
    assert flat.tolist() == expected.reshape(-1).tolist()


def test_rows_that_are_missing_cost_one_copy() -> None:
    assert list(pieces((3, 5), (8, 5))) == [(0, 0, 15)]
    assert list(pieces((3, 5), (3, 5))) == [(0, 0, 15)]
    assert list(pieces((), ())) == [(0, 0, 1)]
    assert list(pieces((2, 3), (4, 5))) == [(0, 0, 3), (3, 5, 3)]
    assert list(pieces((0, 3), (4, 5))) == []
