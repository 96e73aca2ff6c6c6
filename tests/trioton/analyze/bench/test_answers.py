"""Which answers count as the same."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from trioton.analyze.bench.answers import difference
from trioton.convert.tensors import Array

ONES = np.linspace(1, 2, 50, dtype=np.float32)


def apart(one: Array, other: Array) -> str:
    return difference([{"OUT": one}], [{"OUT": other}])


def test_another_order_of_sums_is_the_same_answer() -> None:
    assert apart(ONES, ONES * np.float32(1 + 1e-6)) == ""
    assert apart(ONES.astype(np.float16), ONES.astype(np.float16) * np.float16(1.001)) == ""
    assert apart(ONES.astype(ml_dtypes.bfloat16), ONES.astype(ml_dtypes.bfloat16)) == ""


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (ONES * np.float32(1.01), "it differs by"),
        (ONES[:10], r"shape \[10\] in place of \[50\]"),
        (np.where(ONES > 1.5, np.nan, ONES), "infinities or NaN"),
    ],
)
def test_what_differs(other: Array, reason: str) -> None:
    assert re.search(reason, apart(ONES, other))


def test_integers_and_texts_are_compared_exactly() -> None:
    numbers = np.arange(10)
    assert apart(numbers, numbers) == ""
    assert apart(numbers, numbers + (numbers == 3)) == "request 1, output 'OUT': 10.0% of its elements differ"
    texts = np.array([b"a", b"b"], dtype=object)
    assert apart(texts, texts) == ""
    assert "50.0%" in apart(texts, np.array([b"a", b"c"], dtype=object))


def test_other_outputs() -> None:
    assert "outputs B in place of A" in difference([{"A": ONES}], [{"B": ONES}])
