"""Comparison of a candidate's answers with the default's: no setting may change them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trioton.convert.measures import error, share_equal, usual_size
from trioton.convert.tensors import Array, Arrays

# A batch, or another number of threads, adds up in another order. As a part of an element and the output's usual size.
_ALLOWED = {8: 1e-9, 4: 1e-4, 2: 1e-2}
_MOST_ALLOWED = 5e-2


def difference(expected: Sequence[Arrays], found: Sequence[Arrays]) -> str:
    """Where answers to the same requests differ by more than the order of sums can explain; empty where they do not."""
    for number, (one, other) in enumerate(zip(expected, found, strict=True), 1):
        if one.keys() != other.keys():
            return f"request {number}: outputs {', '.join(sorted(other))} in place of {', '.join(sorted(one))}"
        for name, array in one.items():
            reason = _apart(array, other[name])
            if reason:
                return f"request {number}, output '{name}': {reason}"
    return ""


def _apart(expected: Array, found: Array) -> str:
    if expected.shape != found.shape:
        return f"shape {list(found.shape)} in place of {list(expected.shape)}"
    allowed = _ALLOWED.get(expected.dtype.itemsize, _MOST_ALLOWED)
    if expected.dtype.name == "bfloat16":
        expected, found, allowed = expected.astype(np.float32), found.astype(np.float32), _MOST_ALLOWED
    if not np.issubdtype(expected.dtype, np.floating):
        share = share_equal(expected, found)
        return "" if share == 1.0 else f"{1 - share:.1%} of its elements differ"
    if not np.array_equal(np.isfinite(expected), np.isfinite(found)):
        return "infinities or NaN are elsewhere"
    measured = error(expected, found, usual_size([expected]))
    return "" if measured <= allowed else f"it differs by {measured:.2g}, allowed are {allowed:g}"
