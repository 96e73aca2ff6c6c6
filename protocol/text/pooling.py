"""Pooling: the vectors of a text's tokens to one vector of the text, as sentence-transformers names the ways. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
# A row for each token of the text, without those that fill up; at least one.
TokenVectors = NDArray[Any]

# The shortest length that is divided by, as torch's `normalize` has it.
_LEAST_LENGTH = 1e-12


def _weighted_mean(tokens: TokenVectors) -> Any:
    """Later tokens count for more: the first once, the second twice, and so on."""
    return np.average(tokens, axis=0, weights=np.arange(1, len(tokens) + 1))


POOLINGS: Mapping[str, Callable[[TokenVectors], Any]] = {
    "cls": lambda tokens: tokens[0],
    "mean": lambda tokens: tokens.mean(axis=0, dtype=np.float64),
    "last": lambda tokens: tokens[-1],
    "max": lambda tokens: tokens.max(axis=0),
    "mean_sqrt_len": lambda tokens: tokens.sum(axis=0, dtype=np.float64) / np.sqrt(len(tokens)),
    "weighted_mean": _weighted_mean,
}


def pooled(pooling: str, tokens: TokenVectors) -> Vector:
    """One vector, which keeps nothing of `tokens` alive."""
    vector: Vector = np.array(POOLINGS[pooling](tokens), np.float32)
    return vector


def normalized(vector: Vector) -> Vector:
    """The vector with the length 1; one of no length stays as it is."""
    wide = vector.astype(np.float64)
    made: Vector = (wide / max(float(np.linalg.norm(wide)), _LEAST_LENGTH)).astype(np.float32)
    return made
