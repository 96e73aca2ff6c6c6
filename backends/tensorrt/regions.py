"""Sub-regions of tensors: copies between a tensor and a larger one from the same corner."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from repository.model_config import Dims


def pieces(smaller: Dims, larger: Dims) -> Iterator[tuple[int, int, int]]:
    """The runs of elements that lie one after the other in both: where each begins in the smaller and in the larger,
    and how long it is. One where only the first dimension differs, as between batches of different rows."""
    if not math.prod(smaller):
        return
    cut = next((at for at in reversed(range(len(smaller))) if smaller[at] != larger[at]), 0)
    length = math.prod(smaller[cut:])
    stride = math.prod(larger[cut:])
    outer, around = smaller[:cut], larger[:cut]
    steps = [math.prod(around[at + 1 :]) for at in range(cut)]
    for number, index in enumerate(itertools.product(*map(range, outer))):
        yield number * length, stride * sum(map(int.__mul__, index, steps)), length
