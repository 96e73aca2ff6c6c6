"""Equal candidates have no winner, better ones have."""

from __future__ import annotations

import random

import pytest

from trioton.analyze.search.paired import compare, turns_needed
from trioton.analyze.search.plan import SIGNIFICANCE


def test_of_equal_candidates_hardly_any_pair_is_told_apart() -> None:
    """Whatever the turns have in common."""
    draw = random.Random(7)
    proven = 0
    for _ in range(1000):
        common = [draw.gauss(0, 3) for _ in range(9)]
        first = [turn + draw.gauss(0, 1) for turn in common]
        second = [turn + draw.gauss(0, 1) for turn in common]
        proven += compare(first, second).is_proven(0.05)
    assert 20 <= proven <= 75  # 5 % of 1000, within four standard deviations


def test_a_better_candidate_is_found_through_what_turns_have_in_common() -> None:
    draw = random.Random(7)
    common = [draw.gauss(0, 3) for _ in range(9)]
    found = compare(common, [turn + 0.3 + draw.gauss(0, 0.1) for turn in common])
    assert found.is_proven(SIGNIFICANCE)
    assert found.gain == pytest.approx(0.3, abs=0.1)


def test_equal_values_prove_nothing() -> None:
    assert compare([1.0] * 9, [1.0] * 9).chance == 1.0
    assert compare([], []).chance == 1.0


@pytest.mark.parametrize("level", [0.05, SIGNIFICANCE, 0.001])
def test_how_many_turns_can_prove_something(level: float) -> None:
    needed = turns_needed(level)
    assert compare([0.0] * needed, [1.0] * needed).is_proven(level)
    assert not compare([0.0] * (needed - 1), [1.0] * (needed - 1)).is_proven(level)


def test_many_pairs_are_drawn() -> None:
    draw = random.Random(3)
    values = [draw.gauss(0, 1) for _ in range(40)]
    assert compare(values, [value + 1 for value in values]).chance < 0.001
    assert compare(values, [draw.gauss(0, 1) for _ in range(40)]).chance > 0.05
