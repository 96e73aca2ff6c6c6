"""The meters: a rate against a plain simulation, and places."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.quotas.meters import Bucket, Places, Rate

RATES = st.builds(
    Rate,
    limit=st.sampled_from([1.0, 3.0, 10.0, 600.0, 1e6]),
    seconds=st.sampled_from([0.5, 1.0, 60.0, 86400.0]),
    burst=st.sampled_from([1.0, 2.0, 7.0, 600.0]),
)
WAITS = st.lists(st.floats(0, 5), min_size=1, max_size=60)


@given(RATES, WAITS)
def test_no_more_is_admitted_than_a_burst_and_what_flows_in_meanwhile(rate: Rate, waits: list[float]) -> None:
    bucket, now, admitted = Bucket(rate), 100.0, 0
    for wait in waits:
        now += wait * rate.interval
        if not bucket.wait(1, now):
            bucket.take(1, now)
            admitted += 1
    assert admitted <= rate.burst + (now - 100.0) / rate.interval + 1e-3 + 1e-6 / rate.interval


@given(RATES, WAITS, st.floats(0.1, 5))
def test_who_comes_when_it_was_told_is_admitted_and_not_before(rate: Rate, costs: list[float], early: float) -> None:
    bucket, now = Bucket(rate), 100.0
    for cost in costs:
        wait = bucket.wait(cost, now)
        if wait > 1e-3:
            assert bucket.wait(cost, now + wait * (1 - early / 10))
        now += wait
        assert not bucket.wait(cost, now)
        bucket.take(cost, now)


@given(RATES, st.lists(st.floats(0, 10), max_size=20))
def test_what_is_given_back_was_never_used(rate: Rate, costs: list[float]) -> None:
    bucket = Bucket(rate)
    for cost in costs:
        bucket.take(cost, 100.0)
    for cost in costs:
        bucket.give(cost)
    assert bucket.remaining(100.0) == math.floor(rate.burst)
    assert bucket.reset(100.0) == pytest.approx(0, abs=1e-6)


def test_the_whole_burst_is_there_at_first_and_one_more_an_interval_later() -> None:
    bucket = Bucket(Rate(60, 60, 3))
    for _ in range(3):
        assert bucket.wait(1, 10.0) == 0
        bucket.take(1, 10.0)
    assert (bucket.wait(1, 10.0), bucket.remaining(10.0), bucket.reset(10.0)) == (1.0, 0, 3.0)
    assert (bucket.wait(1, 10.25), bucket.wait(1, 11.0), bucket.remaining(12.5)) == (0.75, 0.0, 2)


def test_what_costs_more_than_the_burst_is_admitted_when_all_is_free_and_owed() -> None:
    bucket = Bucket(Rate(10, 1, 10))
    assert bucket.wait(50, 0.0) == 0
    bucket.take(50, 0.0)
    assert (bucket.wait(0, 0.0), bucket.remaining(0.0)) == (4.0, 0)
    assert bucket.wait(50, 0.0) == pytest.approx(5.0)
    assert bucket.wait(0, 4.0) == 0


def test_as_many_units_are_used_under_another_rate() -> None:
    bucket = Bucket(Rate(86400, 86400, 100))
    for _ in range(40):
        bucket.take(1, 0.0)
    bucket.change(Rate(10, 1, 100), 0.0)
    assert bucket.remaining(0.0) == 60
    assert bucket.reset(0.0) == pytest.approx(4.0)
    bucket.change(Rate(1, 60, 50), 0.0)
    assert bucket.remaining(0.0) == 10


def test_places_are_taken_and_given_back() -> None:
    places = Places(2)
    assert not places.wait(1, 0.0)
    places.take(1, 0.0)
    places.take(1, 0.0)
    assert (places.wait(1, 0.0), places.remaining(0.0), places.reset(0.0)) == (1.0, 0, 1.0)
    places.give(1)
    assert (places.wait(1, 0.0), places.remaining(0.0)) == (0.0, 1)
