"""Measures of the gate, by tensors whose distance is known."""

from __future__ import annotations

import numpy as np
import pytest

from trioton.convert.measures import cosine, differing_top, distance, error, share_equal, usual_size


def test_the_usual_size_is_the_root_of_the_mean_square() -> None:
    assert usual_size([np.array([3.0, 0.0]), np.array([[4.0, np.inf]])]) == pytest.approx(np.sqrt(25 / 3))
    assert usual_size([np.zeros(3)]) == 1.0
    assert usual_size([np.zeros(0)]) == 1.0


def test_an_error_is_relative_to_the_element_and_to_the_usual_size() -> None:
    expected = np.array([0.0, 1.0, 100.0])
    assert error(expected, expected + np.array([0.01, 0, 0]), size=1.0) == pytest.approx(0.01)
    assert error(expected, expected + np.array([0, 0, 1.01]), size=1.0) == pytest.approx(0.01)
    assert error(expected, expected, size=1.0) == 0.0
    assert error(np.zeros(0), np.zeros(0), size=1.0) == 0.0


def test_what_is_not_finite_is_left_out() -> None:
    expected = np.array([np.nan, np.inf, 1.0])
    assert error(expected, np.array([np.nan, np.inf, 1.0]), size=1.0) == 0.0
    assert cosine(expected, np.array([np.nan, np.inf, 2.0])) == 1.0


def test_a_cosine_does_not_see_the_scale_and_a_distance_does() -> None:
    expected = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert cosine(expected, 2 * expected) == pytest.approx(1.0)
    assert distance(expected, 2 * expected, size=1.0) == pytest.approx(1.0)
    assert cosine(expected, -expected) == pytest.approx(-1.0)
    assert cosine(np.zeros(2), np.zeros(2)) == 1.0
    assert cosine(np.zeros(2), np.ones(2)) == 0.0


def test_the_greatest_element_is_compared_where_the_reference_prefers_one() -> None:
    expected = np.array([[0.0, 1.0], [0.5, 0.5 + 1e-6], [2.0, 1.0]])
    found = np.array([[0.0, 1.0], [0.6, 0.5], [1.0, 2.0]])
    assert differing_top(expected, found, size=1.0) == (1, 3)


def test_texts_and_bytes_of_one_meaning_are_equal() -> None:
    assert share_equal(np.array(["a", "b"]), np.array([b"a", b"c"], dtype=object)) == 0.5
    assert share_equal(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])) == 0.75
    assert share_equal(np.zeros(0, np.int64), np.zeros(0, np.int64)) == 1.0
