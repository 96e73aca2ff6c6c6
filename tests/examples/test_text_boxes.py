"""From probability maps to boxes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.examples.loading import load_example
from tests.examples.local_server import Array

text_boxes = load_example("clients/text_boxes")

Bounds = tuple[int, int, int, int]


def mask(*rows: str) -> Array:
    return np.array([[character == "#" for character in row] for row in rows])


def flood_fill_regions(pixels: Array) -> list[Bounds]:
    """The same by the slow and plain way."""
    left_over = {(int(y), int(x)) for y, x in np.argwhere(pixels)}
    regions = []
    while left_over:
        todo = [left_over.pop()]
        region = []
        while todo:
            y, x = todo.pop()
            region.append((y, x))
            for neighbour in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if neighbour in left_over:
                    left_over.remove(neighbour)
                    todo.append(neighbour)
        ys, xs = zip(*region, strict=True)
        regions.append((min(xs), min(ys), max(xs) + 1, max(ys) + 1))
    return regions


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (mask("...", "..."), []),
        (mask("###", "###"), [(0, 0, 3, 2)]),
        (mask("#.#", "#.#"), [(0, 0, 1, 2), (2, 0, 3, 2)]),
        (mask("#.#", "###"), [(0, 0, 3, 2)]),
        (mask("#.", ".#"), [(0, 0, 1, 1), (1, 1, 2, 2)]),
        (mask("#####", "....#", "#####", "#....", "#####"), [(0, 0, 5, 5)]),
        (mask("##", "..", "##"), [(0, 0, 2, 1), (0, 2, 2, 3)]),
    ],
    ids=["nothing", "all", "two columns", "joined below", "corners do not touch", "snake", "a row between"],
)
def test_connected_regions(pixels: Array, expected: list[Bounds]) -> None:
    assert sorted(text_boxes.connected_regions(pixels)) == sorted(expected)


@given(arrays(np.bool_, st.tuples(st.integers(1, 12), st.integers(1, 12))))
def test_connected_regions_are_those_of_a_flood_fill(pixels: Array) -> None:
    assert sorted(text_boxes.connected_regions(pixels)) == sorted(flood_fill_regions(pixels))


def test_a_region_is_scored_and_grown() -> None:
    """40 x 10 pixels have area / circumference 4, so the margin is 1.6 x 4."""
    probability = np.zeros((100, 200), dtype=np.float32)
    probability[30:40, 50:90] = 0.9
    (box,) = text_boxes.find_boxes(probability)
    assert (box.left, box.top, box.right, box.bottom) == pytest.approx((43.6, 23.6, 96.4, 46.4))
    assert box.score == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("height", "width", "probability"), [(10, 40, 0.25), (10, 40, 0.45), (2, 40, 0.9), (10, 2, 0.9)]
)
def test_faint_and_tiny_regions_are_dropped(height: int, width: int, probability: float) -> None:
    probabilities = np.zeros((100, 200), dtype=np.float32)
    probabilities[20 : 20 + height, 20 : 20 + width] = probability
    assert text_boxes.find_boxes(probabilities) == []


def test_boxes_come_in_reading_order() -> None:
    """A line whose boxes are not quite level is still one line."""
    first, second = text_boxes.Box(0, 12, 40, 32, 1), text_boxes.Box(60, 10, 90, 30, 1)
    below = text_boxes.Box(0, 42, 40, 62, 1)
    assert text_boxes.in_reading_order([below, second, first]) == [first, second, below]
