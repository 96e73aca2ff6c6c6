"""Pareto fronts: what nothing else beats in both of two measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum


class Goal(StrEnum):
    LOWER = "lower is better"
    HIGHER = "higher is better"


def pareto_front(points: Sequence[tuple[float, float]], goals: tuple[Goal, Goal]) -> list[int]:
    """Indices of the points that no other is better than in one measure and at least as good in the other, in the order
    of the first measure. Of equal points the first alone; those that are no numbers never."""
    signs = [1.0 if goal is Goal.LOWER else -1.0 for goal in goals]
    costs = [(signs[0] * x, signs[1] * y) for x, y in points]
    finite = [index for index, cost in enumerate(costs) if all(map(math.isfinite, cost))]
    front: list[int] = []
    for index in sorted(finite, key=lambda each: (*costs[each], each)):
        if not front or costs[index][1] < costs[front[-1]][1]:
            front.append(index)
    return sorted(front, key=lambda index: points[index][0])
