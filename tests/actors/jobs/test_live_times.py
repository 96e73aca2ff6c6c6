"""How long live requests take, and what part of them would be late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.jobs.live_times import (
    ENOUGH,
    ENOUGH_SECONDS,
    KEEP_SECONDS,
    LEAST_SECONDS,
    LIMIT,
    MANY,
    MOST_SAMPLES,
    NEWEST,
    LiveTimes,
)

SECONDS = st.floats(0.0, 10.0)


def times_of(seconds: list[float], distance: float = 0.01, since: float = 0.0) -> LiveTimes:
    times = LiveTimes()
    for number, each in enumerate(seconds):
        times.add(each, since + distance * number)
    return times


def test_nothing_is_known_of_few() -> None:
    assert not times_of([1.0] * (ENOUGH - 1)).is_known
    assert times_of([1.0] * ENOUGH).is_known


def test_of_those_that_come_quickly_it_takes_more() -> None:
    assert not times_of([1.0] * (MANY - 1), distance=0.1 * ENOUGH_SECONDS / MANY).is_known
    assert times_of([1.0] * MANY, distance=0.1 * ENOUGH_SECONDS / MANY).is_known


def test_the_limit_is_above_the_p99() -> None:
    times = times_of([0.01] * 990 + [0.02] * 10)
    assert times.limit == pytest.approx(LIMIT * 0.01)
    assert times_of([0.0001] * 100).limit == pytest.approx(0.0001 + LEAST_SECONDS)


@given(st.lists(SECONDS, min_size=ENOUGH, max_size=200), SECONDS, SECONDS)
def test_more_is_late_the_more_is_added(seconds: list[float], one: float, two: float) -> None:
    times = times_of(seconds)
    less, more = sorted((one, two))
    assert 0 == times.part_late(0.0) <= times.part_late(less) <= times.part_late(more) <= 1 - times.part_beyond
    assert 0 <= times.part_beyond <= 0.01 + (0.01 / len(seconds)) ** 0.5 + 1 / len(seconds)


@given(st.lists(SECONDS, min_size=ENOUGH, max_size=3 * MOST_SAMPLES // 2))
def test_only_the_newest_count(seconds: list[float]) -> None:
    """However they come and go, they are as if only these had come."""
    times, newest = times_of(seconds, 0.0), sorted(seconds[-MOST_SAMPLES:])
    assert times._sorted == newest


def test_the_part_that_would_be_late() -> None:
    times = times_of([0.01, 0.02] * 64)
    assert times.part_late(0.002) == 0.0
    assert times.part_late(0.004) == 0.5
    assert times.part_late(0.1) == 1.0


def test_what_is_old_is_forgotten() -> None:
    times = times_of([1.0] * 500)
    for number in range(MOST_SAMPLES // 4):
        times.add(0.9, 2 * KEEP_SECONDS + 0.001 * number)
    assert times.limit == pytest.approx(0.9 * LIMIT)


def test_when_all_have_become_much_shorter_the_older_ones_say_nothing() -> None:
    times = times_of([1.0] * 500)
    for number in range(2 * NEWEST):
        times.add(0.1, 1.0 + 0.001 * number)
    assert times.limit == pytest.approx(0.1 * LIMIT)
