"""What jobs may take of the server's time beside live requests."""

from __future__ import annotations

import pytest

from actors.jobs.pace import (
    GATHER_SECONDS,
    LEAST_QUIET_SECONDS,
    MOST_QUIET_SECONDS,
    ROW_SECONDS,
    SHARE,
    Pace,
)


def rows_beside(distance: float, seconds: float, size: int = 0) -> tuple[int, int]:
    """How many go beside live requests at such a distance, all and at most with one of them."""
    pace, now = Pace(), 0.0
    total = most = 0
    for _ in range(100):  # they have come for a while
        pace.note_live(now := now + distance)
        while pace.may_go(now):
            pace.gone(0)
    for _ in range(round(seconds / distance)):
        pace.note_live(now := now + distance)
        count = 0
        while pace.may_go(now):
            pace.gone(size)
            count += 1
        total, most = total + count, max(most, count)
    return total, most


@pytest.mark.parametrize("distance", [0.0001, 0.0005, 0.002, 0.01])
def test_rows_have_a_share_of_the_time(distance: float) -> None:
    total, most = rows_beside(distance, 10)
    assert total * ROW_SECONDS == pytest.approx(10 * SHARE, rel=0.05)
    assert most <= SHARE * distance / ROW_SECONDS + 1


def test_a_large_row_takes_what_several_would_have() -> None:
    small, _ = rows_beside(0.01, 10)
    large, _ = rows_beside(0.01, 10, size=1_000_000)
    assert large * 5 < small
    assert large > 10


def test_what_large_rows_owe_is_bounded() -> None:
    pace = Pace()
    for _ in range(100):
        pace.gone(1 << 30)
    now = 0.0
    while not pace.may_go(now := now + 0.01):
        pace.note_live(now)
    assert now < 2


def test_without_live_requests_there_is_no_limit() -> None:
    pace = Pace()
    assert not pace.is_live(0.0)
    for _ in range(10_000):
        assert pace.may_go(0.0)
        pace.gone(0)
    assert pace.gathering(0.0) == 0.0
    assert pace.share(0.0) == 1.0


@pytest.mark.parametrize(
    ("distance", "quiet"), [(0.0001, LEAST_QUIET_SECONDS), (0.01, 0.04), (0.5, MOST_QUIET_SECONDS)]
)
def test_live_requests_are_about_for_some_times_their_distance(distance: float, quiet: float) -> None:
    pace, now = Pace(), 0.0
    for _ in range(100):
        now += distance
        pace.note_live(now)
    assert pace.is_live(now + quiet - 0.001)
    assert not pace.is_live(now + quiet + 0.001)
    assert pace.may_go(now + quiet + 0.001)


def test_beside_live_requests_ends_are_gathered_and_threads_rest() -> None:
    pace = Pace()
    pace.note_live(1.0)
    assert pace.gathering(1.001) == GATHER_SECONDS
    assert pace.share(1.001) == SHARE
