"""The histogram: buckets, percentiles, and that adding loses nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioton.perf.histogram import Histogram, bucket_bounds, bucket_of

VALUES = st.lists(st.integers(0, 2**52), min_size=1, max_size=50)


def of(values: list[int]) -> Histogram:
    made = Histogram()
    made.record_all(values)
    return made


@given(st.integers(0, 2**62))
def test_a_value_lies_within_its_bucket(value: int) -> None:
    low, end = bucket_bounds(bucket_of(value))
    assert low <= value < end


@given(st.integers(0, 2**62))
def test_a_bucket_is_narrow(value: int) -> None:
    low, end = bucket_bounds(bucket_of(value))
    assert end - low == 1 or (end - low) / low <= 1 / 128


def test_buckets_follow_each_other_without_a_gap() -> None:
    assert [bucket_bounds(index)[1] for index in range(2000)] == [bucket_bounds(index)[0] for index in range(1, 2001)]


@given(VALUES)
def test_many_at_once_count_as_one_by_one(values: list[int]) -> None:
    single = Histogram()
    for value in values:
        single.record(value)
    assert of(values) == single


@given(VALUES, VALUES)
def test_added_ones_count_as_one(first: list[int], second: list[int]) -> None:
    whole = of(first)
    whole.merge(of(second))
    assert whole == of(first + second)


@given(VALUES)
def test_json_keeps_all(values: list[int]) -> None:
    assert Histogram.from_json(of(values).to_json()) == of(values)


@pytest.mark.parametrize("percent", [1, 50, 90, 99, 99.9])
def test_percentiles_are_those_of_the_sorted_values(percent: float) -> None:
    drawn = random.Random(7)
    values = sorted(int(drawn.lognormvariate(15, 1)) for _ in range(20_000))
    expected = values[min(len(values) - 1, int(percent / 100 * len(values)))]
    assert of(values).percentile(percent) == pytest.approx(expected, rel=0.01)


def test_sum_count_and_ends_are_exact() -> None:
    made = of([3, 5_000_000_007, 11])
    assert (made.count, made.total, made.least, made.greatest) == (3, 5_000_000_021, 3, 5_000_000_007)


def test_only_percentiles_that_the_count_allows_are_given() -> None:
    assert list(of(list(range(1000))).percentiles([50, 99, 99.9])) == [50, 99]
    assert list(of(list(range(10_000))).percentiles([99.9, 99.99])) == [99.9]


def test_nothing_counted() -> None:
    assert (Histogram().percentile(99), Histogram().mean, Histogram().allows(50)) == (0, 0, False)


def test_values_up_to_a_bound_are_counted() -> None:
    assert of([1, 2, 3, 1000, 10**9]).at_most(1000) == 4
