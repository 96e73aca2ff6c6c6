"""What jobs may take of the server's time beside live requests."""

from __future__ import annotations

import pytest

from actors.jobs.pace import (
    CLEAN_SECONDS,
    DENSE_SECONDS,
    GATHER_SECONDS,
    LEAST_QUIET_SECONDS,
    MOST_QUIET_SECONDS,
    MOST_ROWS,
    REST_SECONDS,
    ROW_SECONDS,
    SHARE,
    THREAD_SHARE,
    WHILE_SECONDS,
    Pace,
)


def seen(distance: float, until: float) -> Pace:
    """Live requests have come at such a distance, and the last one then."""
    pace = Pace()
    for number in range(100, -1, -1):
        pace.note_live(until - number * distance)
    return pace


def rows_beside(distance: float, seconds: float, *, size: int = 0, together: int = 1) -> int:
    """How many go beside live requests at such a distance, so many at a time and with so many bytes."""
    pace, now, total = seen(distance, 0.0), 0.0, 0
    for _ in range(round(seconds / distance)):
        pace.note_live(now := now + distance)
        if pace.rows(now) >= together:
            pace.gone(together, together * size, now)
            total += together
    return total


@pytest.mark.parametrize("distance", [0.0001, 0.0005, 0.002, 0.01])
@pytest.mark.parametrize("together", [5, MOST_ROWS])
def test_rows_have_a_share_of_the_time(distance: float, together: int) -> None:
    total = rows_beside(distance, 10, together=together)
    assert 0.75 * 10 * SHARE <= total * ROW_SECONDS <= 1.01 * 10 * SHARE


def test_no_more_are_saved_up_than_go_together() -> None:
    pace = seen(0.001, 5.5)
    assert 0 < pace.rows(5.5) < MOST_ROWS
    for number in range(400):
        pace.note_live(5.5 + 0.001 * number)
    assert pace.rows(5.9) == MOST_ROWS


def test_a_large_row_takes_what_several_would_have() -> None:
    small, large = rows_beside(0.01, 10, together=5), rows_beside(0.01, 10, size=1_000_000)
    assert 10 < large < small / 5


def test_what_large_rows_owe_is_bounded() -> None:
    pace, now = Pace(), 0.0
    for _ in range(100):
        pace.gone(1, 1 << 30, now)
    pace.note_live(now)
    while not pace.rows(now := now + 0.01):
        pace.note_live(now)
    assert now < 2


def test_the_first_live_request_finds_nothing_saved_up() -> None:
    pace = seen(0.01, 1.0)
    pace.note_live(9.9)
    assert pace.rows(9.9) == 0


def test_without_live_requests_there_is_no_limit() -> None:
    pace = Pace()
    assert not pace.is_live(0.0)
    for _ in range(10_000):
        assert pace.rows(0.0) > 1_000_000
        pace.gone(1, 0, 0.0)
    assert pace.gathering(0.0) == 0.0
    assert pace.share(0.0) == 1.0
    assert pace.is_clean(0.0)


@pytest.mark.parametrize(
    ("distance", "quiet"), [(0.0001, LEAST_QUIET_SECONDS), (0.01, 0.04), (0.5, MOST_QUIET_SECONDS)]
)
def test_live_requests_are_about_for_some_times_their_distance(distance: float, quiet: float) -> None:
    pace = seen(distance, 0.0)
    assert pace.is_live(quiet - 0.001)
    assert not pace.is_live(quiet + 0.001)
    assert pace.rows(quiet + 0.001) > 1_000_000


def test_for_a_part_of_each_while_none_go_beside_those_that_come_closely() -> None:
    for part, may_go in ((0.0, False), (REST_SECONDS - 0.01, False), (REST_SECONDS + 0.01, True)):
        now = 7 * WHILE_SECONDS + part
        assert (seen(DENSE_SECONDS / 2, now).rows(now) > 0) is may_go
        assert seen(2 * DENSE_SECONDS, now).rows(now) > 0


def test_what_they_take_says_something_when_none_have_gone_for_some_time() -> None:
    pace = seen(DENSE_SECONDS / 2, 1.0)
    pace.gone(1, 0, 1.0)
    for number in range(200):
        pace.note_live(now := 1.0 + 0.001 * number)
        assert pace.is_clean(now) is (now - 1.0 > CLEAN_SECONDS)
    pace = seen(2 * DENSE_SECONDS, 1.0)
    pace.gone(1, 0, 1.0)
    assert pace.is_clean(1.0)


def test_beside_live_requests_ends_are_gathered_and_threads_rest() -> None:
    pace = seen(0.01, 1.0)
    assert pace.gathering(1.001) == GATHER_SECONDS
    assert pace.share(1.001) == THREAD_SHARE
