"""Scales keep their order, and ticks are few, round and within."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioton.report.ticks import Axis, linear_ticks, log_ticks, scale_of

FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(FLOATS, max_size=8), st.booleans(), st.booleans())
def test_every_value_that_can_be_shown_has_a_place(values: list[float], is_log: bool, from_zero: bool) -> None:
    axis = Axis("x", is_log=is_log, from_zero=from_zero)
    scale = scale_of(axis, values, 10.0, 90.0)
    shown = sorted(value for value in values if axis.can_show(value))
    places = [scale.place(value) for value in shown]
    assert all(10.0 <= place <= 90.0 for place in places)
    assert places == sorted(places)
    assert len(scale.ticks()) <= 24


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 7.5), (0.0, 1234.0), (1e-7, 3e-7), (1e12, 1e12 + 5)])
def test_linear_ticks_are_few_and_within(low: float, high: float) -> None:
    ticks = linear_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    assert all(low - 1e-9 * abs(high) <= tick <= high * (1 + 1e-12) for tick in ticks)


def test_log_ticks() -> None:
    assert log_ticks(0.9, 110) == [1, 10, 100]
    assert log_ticks(3, 60) == [5, 10, 20, 50]
    assert len(log_ticks(1e-20, 1e20)) <= 10


def test_a_log_axis_shows_no_zero() -> None:
    assert not Axis("x", is_log=True).can_show(0.0)
    assert not Axis("x").can_show(math.nan)
    assert Axis("rate", "1/s").title == "rate (1/s)"
