"""How long a model runs a batch of so many rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.jobs.batch_seconds import BatchSeconds


def learned(seconds: Callable[[int], float], sizes: list[int], times: int = 30) -> BatchSeconds:
    batches, now = BatchSeconds(), 0.0
    for _ in range(times):
        for rows in sizes:
            batches.observe(rows, seconds(rows), now := now + 0.01)
    return batches


@given(st.floats(0.0, 1.0), st.floats(0.0001, 1.0))
def test_a_line_is_found(fixed: float, each: float) -> None:
    batches = learned(lambda rows: fixed + each * rows, [1, 3, 7])
    for rows in (1, 2, 5, 8):
        assert batches.mean(rows) == pytest.approx(fixed + each * rows, rel=0.01)
    assert batches.each() == pytest.approx(each, rel=0.01, abs=0.001 * fixed)


def test_while_all_are_alike_each_row_may_take_as_long() -> None:
    assert learned(lambda rows: 0.01, [1]).mean(4) == pytest.approx(0.04)


def test_a_size_that_was_seen_takes_what_it_took() -> None:
    """As where batches are padded: no line goes through these."""
    batches = learned(lambda rows: 0.01 if rows <= 4 else 0.02, [1, 3, 4, 5, 8])
    assert [batches.mean(rows) for rows in (1, 4, 5, 8)] == pytest.approx([0.01, 0.01, 0.02, 0.02])


def test_a_pause_of_the_machine_counts_little() -> None:
    batches = learned(lambda rows: 0.01 * rows, [1, 2, 3])
    batches.observe(1, 60.0, 10.0)
    assert batches.mean(1) < 0.02


def test_another_time_is_found_soon() -> None:
    batches = learned(lambda rows: 0.01, [1, 8])
    for number in range(60):
        rows = 8 if number % 8 else 1
        batches.observe(rows, 0.01 * rows, 1.0 + 0.01 * number)
    assert batches.mean(8) == pytest.approx(0.08, rel=0.05)
    assert batches.each() == pytest.approx(0.01, rel=0.2)
