"""Measures of how far two tensors are apart. What is not finite is left out: the gate compares where that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trioton.convert.tensors import Array

# Of the reference's usual size: a lead of the greatest element over the chosen one that counts as none.
_TIE = 1e-3


def usual_size(arrays: Sequence[Array]) -> float:
    """The root of the mean square of all elements; 1 where they are zero."""
    flat = np.concatenate([np.ravel(array).astype(np.float64) for array in arrays])
    flat = flat[np.isfinite(flat)]
    size = float(np.sqrt(np.mean(np.square(flat)))) if flat.size else 0.0
    return size or 1.0


def error(expected: Array, found: Array, size: float) -> float:
    """The greatest difference of an element, as a part of its own size and `size` together."""
    one, other = _finite(expected, found)
    return float(np.max(np.abs(one - other) / (size + np.abs(one)), initial=0.0))


def distance(expected: Array, found: Array, size: float) -> float:
    """The Euclidean distance as a part of the expected norm, or of that which `size` gives where it is greater."""
    one, other = _finite(expected, found)
    norm = max(float(np.linalg.norm(one)), size * np.sqrt(one.size) * 0.1)
    return float(np.linalg.norm(one - other)) / norm if one.size else 0.0


def cosine(expected: Array, found: Array) -> float:
    """Of the whole tensors, so that large rows count more than those that are nearly zero."""
    one, other = _finite(expected, found)
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    if norms == 0:
        return 1.0 if np.array_equal(one, other) else 0.0
    return float(np.dot(one, other)) / norms


def differing_top(expected: Array, found: Array, size: float) -> tuple[int, int]:
    """In how many rows the greatest element of the last axis is another one, and of how many. Where the reference
    itself hardly prefers one of both, there is no difference."""
    rows = expected.reshape(-1, expected.shape[-1]).astype(np.float64)
    others = found.reshape(rows.shape)
    every = np.arange(len(rows))
    lead = np.max(rows, axis=1) - rows[every, np.argmax(others, axis=1)]
    return int(np.sum(lead > _TIE * size)), len(rows)


def share_equal(expected: Array, found: Array) -> float:
    if expected.dtype.kind in "OSU" or found.dtype.kind in "OSU":
        one = [_text(each) for each in expected.ravel().tolist()]
        other = [_text(each) for each in found.ravel().tolist()]
        same = sum(a == b for a, b in zip(one, other, strict=True))
        return same / len(one) if one else 1.0
    return float(np.mean(expected == found)) if expected.size else 1.0


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _finite(expected: Array, found: Array) -> tuple[Array, Array]:
    one, other = np.ravel(expected).astype(np.float64), np.ravel(found).astype(np.float64)
    keep = np.isfinite(one) & np.isfinite(other)
    return one[keep], other[keep]
