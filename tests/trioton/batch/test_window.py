"""Rows end in any order, and leave the window in theirs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.jobs.rows import ResultRow
from protocol.jobs.source import Position
from protocol.messages import InferenceResponse, Tensor
from trioton.batch.window import Window


def result(index: int, size: int = 0) -> ResultRow:
    return ResultRow(index, "", [InferenceResponse("m", 1, [Tensor.from_numpy("Y", np.zeros(size, np.uint8))])])


@given(st.permutations(range(12)), st.integers(1, 5))
def test_every_row_leaves_once_and_in_order(ends: list[int], most: int) -> None:
    window = Window(100, 1 << 20)
    for index in range(12):
        window.take(3 * index, Position(3 * index + 1))
    left: list[int] = []
    for index in ends:
        is_first = window.end(result(3 * index))
        assert is_first == (3 * index == 3 * len(left))
        while ready := window.ready(most):
            assert len(ready) <= most
            left += [row.index for row in ready]
            assert window.position == Position(left[-1] + 1)
    assert left == list(range(0, 36, 3))
    assert len(window) == 0


def test_it_has_room_for_so_many_rows() -> None:
    window = Window(2, 1 << 20, Position(5))
    assert window.position == Position(5)
    window.take(0, Position(1))
    assert window.has_room()
    window.take(1, Position(2))
    assert not window.has_room()
    window.end(result(1))
    assert window.ready(10) == []
    window.end(result(0))
    assert len(window.ready(10)) == 2
    assert window.has_room()


def test_results_that_wait_take_room_but_never_from_the_first_row() -> None:
    window = Window(10, 100)
    window.take(0, Position(1))
    window.take(1, Position(2))
    window.end(result(1, 100))
    assert not window.has_room()
    window.end(result(0, 500))
    assert [row.index for row in window.ready(10)] == [0, 1]
    assert window.has_room()
