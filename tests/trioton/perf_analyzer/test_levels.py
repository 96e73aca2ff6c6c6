"""Which levels are measured, by what their latency was."""

from __future__ import annotations

import pytest

from trioton.perf_analyzer.levels import search
from trioton.perf_analyzer.options import Options, Range


def measured(options: Options, most: float) -> list[float]:
    """Where levels up to `most` are within the limit."""
    levels = search(options)
    level = next(levels)
    found = [level]
    while len(found) < 100:
        try:
            found.append(levels.send(found[-1] <= most))
        except StopIteration:
            return found
    return found


@pytest.mark.parametrize(
    ("levels", "most", "expected"),
    [
        (Range(4, 1, 1), 99, [4]),
        (Range(1, 4, 1), 99, [1, 2, 3, 4]),
        (Range(1, 8, 3), 99, [1, 4, 7]),
        (Range(1, 8, 1), 2, [1, 2, 3]),
        (Range(2, 0, 2), 6, [2, 4, 6, 8]),
    ],
)
def test_linear(levels: Range, most: float, expected: list[float]) -> None:
    assert measured(Options(model="m", concurrency=levels), most) == expected


def test_rates_do_not_lose_the_last_one_to_rounding() -> None:
    found = measured(Options(model="m", rates=Range(0.1, 0.5, 0.1)), 99)
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.parametrize(
    ("levels", "most", "expected"),
    [
        (Range(1, 16, 1), 0, [1]),
        (Range(1, 16, 1), 99, [1, 16]),
        (Range(1, 16, 1), 5, [1, 16, 8, 4, 6, 5]),
        (Range(1, 16, 4), 5, [1, 16, 8, 4]),
    ],
)
def test_binary(levels: Range, most: float, expected: list[float]) -> None:
    options = Options(model="m", concurrency=levels, is_binary_search=True, latency_limit=1)
    assert measured(options, most) == expected


def test_binary_over_rates() -> None:
    options = Options(model="m", rates=Range(1, 2, 0.25), is_binary_search=True, latency_limit=1)
    assert measured(options, 1.4) == [1, 2, 1.5, 1.25]
