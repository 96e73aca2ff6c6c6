"""Paired comparison: whether one of two candidates that were measured in turns is really better. Exact and pure."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

# With more pairs the signs are drawn instead of listed.
_MOST_LISTED = 14
_DRAWN = 20_000
_SEED = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """`gain` is the mean of the differences, and `chance` the probability of one so far from 0 where there is none."""

    gain: float
    chance: float
    pairs: int

    def is_proven(self, level: float) -> bool:
        return self.chance <= level


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """By the differences of values of the same turn, under all changes of their signs: if both are alike, each
    difference could as well have been the other way round. No distribution is assumed."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    if not differences:
        return Comparison(0.0, 1.0, 0)
    total = abs(math.fsum(differences))
    limit = total * (1 - 1e-12)
    if len(differences) <= _MOST_LISTED:
        sums = [abs(math.fsum(each)) for each in itertools.product(*((d, -d) for d in differences))]
        chance = sum(each >= limit for each in sums) / len(sums)
    else:
        draw = random.Random(_SEED)
        beyond = sum(
            abs(math.fsum(d if draw.random() < 0.5 else -d for d in differences)) >= limit for _ in range(_DRAWN)
        )
        chance = (beyond + 1) / (_DRAWN + 1)
    return Comparison(math.fsum(differences) / len(differences), chance, len(differences))


def turns_needed(level: float) -> int:
    """With fewer pairs nothing can be proven at this level: all differences of one sign are too probable."""
    return math.ceil(1 - math.log2(level))
