"""The front holds exactly what nothing else beats."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from trioton.report.pareto import Goal, pareto_front

NUMBERS = st.integers(0, 8).map(float)
GOALS = st.tuples(st.sampled_from(Goal), st.sampled_from(Goal))


def is_better(one: float, other: float, goal: Goal) -> bool:
    return one < other if goal is Goal.LOWER else one > other


def beats(one: tuple[float, float], other: tuple[float, float], goals: tuple[Goal, Goal]) -> bool:
    pairs = list(zip(one, other, goals, strict=True))
    return any(is_better(*pair) for pair in pairs) and not any(is_better(b, a, goal) for a, b, goal in pairs)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12), GOALS)
def test_against_the_definition(points: list[tuple[float, float]], goals: tuple[Goal, Goal]) -> None:
    front = pareto_front(points, goals)
    expected = {point for point in points if not any(beats(other, point, goals) for other in points)}
    assert {points[index] for index in front} == expected
    assert len(front) == len(expected)
    assert front == sorted(front, key=lambda index: points[index][0])


def test_what_is_no_number_is_never_on_it() -> None:
    points = [(math.nan, 1.0), (1.0, math.inf), (2.0, 2.0)]
    assert pareto_front(points, (Goal.LOWER, Goal.LOWER)) == [2]
