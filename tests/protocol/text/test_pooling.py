"""Pooling of tokens' vectors."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.text.pooling import POOLINGS, normalized, pooled

TOKENS = np.array([[1, 6], [3, 0], [5, 3]], np.float16)


@pytest.mark.parametrize(
    ("pooling", "vector"),
    [
        ("cls", [1, 6]),
        ("mean", [3, 3]),
        ("last", [5, 3]),
        ("max", [5, 6]),
        ("mean_sqrt_len", [9 / 3**0.5, 9 / 3**0.5]),
        ("weighted_mean", [(1 + 2 * 3 + 3 * 5) / 6, (6 + 3 * 3) / 6]),
    ],
)
def test_pooling(pooling: str, vector: list[float]) -> None:
    made = pooled(pooling, TOKENS)
    assert made.dtype == np.float32
    assert made.tolist() == pytest.approx(vector)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_is_no_view(pooling: str) -> None:
    """It would keep the vectors of all tokens."""
    tokens = np.ones((1, 4), np.float32)
    made = pooled(pooling, tokens)
    assert not np.shares_memory(made, tokens)
    assert made.tolist() == [1] * 4


def test_lengths() -> None:
    assert normalized(np.array([3, 4], np.float32)).tolist() == pytest.approx([0.6, 0.8])
    assert normalized(np.zeros(2, np.float32)).tolist() == [0, 0]
    assert normalized(np.array([3e38, 3e38], np.float32)).tolist() == pytest.approx([0.5**0.5] * 2)
