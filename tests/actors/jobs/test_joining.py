"""How many requests of jobs go to a model beside live ones, and when without any."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actors.jobs.joining import (
    MOST_QUIET_SECONDS,
    MOST_WAIT_SECONDS,
    RECENT_SECONDS,
    SILENCE_SECONDS,
    UNKNOWN_SECONDS,
    Joining,
)
from actors.jobs.pace import LEAST_QUIET_SECONDS
from protocol.jobs.execution import ModelLoad


def known(joining: Joining, seconds: Callable[[int], float], now: float = 0.0) -> float:
    """It has seen live requests, one after the other, and batches of all sizes up to 8; when that was over."""
    for number in range(200):
        rows = 1 + number % 8
        joining.riding.ran(now, now + seconds(rows), [now], 1, rows - 1)
        now += seconds(rows)
    return now


@pytest.mark.parametrize(("capacity", "in_flight", "count"), [(8, 1, 7), (8, 8, 0), (16, 3, 13)])
def test_live_requests_take_along_what_their_batch_has_room_for(capacity: int, in_flight: int, count: int) -> None:
    joining = Joining(0.0)
    now = known(joining, lambda rows: 0.1)  # no matter how many go, it takes as long
    assert joining.beside(ModelLoad(in_flight, capacity), in_flight == capacity, 64, now) == count


def test_they_take_none_along_before_anything_is_known() -> None:
    assert Joining(0.0).beside(ModelLoad(1, 8), 0, 64, 0.0) == 0


@pytest.mark.parametrize(
    ("capacity", "in_flight", "running", "count"),
    [(8, 0, 0, 16), (8, 4, 4, 12), (8, 16, 16, 0), (1, 0, 0, 2), (8, 5, 4, 0), (8, 1, 0, 0)],
)
def test_without_live_requests_a_model_never_waits(capacity: int, in_flight: int, running: int, count: int) -> None:
    assert Joining(0.0).alone(ModelLoad(in_flight, capacity), running, SILENCE_SECONDS) == count


def test_all_hear_that_the_model_is_gone() -> None:
    assert Joining(0.0).alone(ModelLoad(0, 0), 0, 0.0) > 1_000_000


@pytest.mark.parametrize(
    ("distance", "quiet"), [(0.0001, LEAST_QUIET_SECONDS), (0.01, 0.08), (0.5, MOST_QUIET_SECONDS)]
)
def test_the_while_without_live_requests_depends_on_their_distance(distance: float, quiet: float) -> None:
    joining, now = Joining(0.0), 0.0
    for _ in range(100):
        now += distance
        joining.note_live(now)
        joining.started(now)
    idle = ModelLoad(0, 8)
    assert joining.alone(idle, 0, now + quiet - 0.001) == 0
    assert joining.alone(idle, 0, now + quiet + 0.001) == 8


def test_live_requests_that_came_by_another_way_count() -> None:
    """But they do not look like many that came one after the other."""
    joining = Joining(0.0)
    assert joining.alone(ModelLoad(1, 8), 0, 0.1) == 0
    assert joining.alone(ModelLoad(0, 8), 0, 0.1 + LEAST_QUIET_SECONDS / 2) == 0
    assert joining.alone(ModelLoad(0, 8), 0, 0.1 + LEAST_QUIET_SECONDS * 1.6) == 8


def test_the_while_begins_when_the_last_live_request_is_answered() -> None:
    """Of a slow model it came long before, and the next may come in the moment of its answer."""
    joining = Joining(0.0)
    joining.note_live(1.0)
    assert joining.alone(ModelLoad(1, 8), 0, 1.01) == 0
    assert joining.alone(ModelLoad(1, 8), 0, 1.39) == 0
    assert joining.alone(ModelLoad(0, 8), 0, 1.41) == 0
    assert joining.alone(ModelLoad(0, 8), 0, 1.41 + MOST_QUIET_SECONDS) == 8


def test_some_go_when_none_has_gone_for_long() -> None:
    joining = Joining(0.0)
    assert joining.overdue(UNKNOWN_SECONDS - 0.1) == 0
    assert joining.overdue(UNKNOWN_SECONDS) == 1
    joining.started(UNKNOWN_SECONDS)
    assert joining.overdue(UNKNOWN_SECONDS + 0.1) == 0
    known(joining, lambda rows: 0.01 * rows)
    assert joining.overdue(UNKNOWN_SECONDS + MOST_WAIT_SECONDS - 0.1) == 0
    assert joining.overdue(UNKNOWN_SECONDS + MOST_WAIT_SECONDS) == 1


def test_soon_after_live_requests_batches_are_no_larger_than_is_worthwhile() -> None:
    """The next live request would wait for all of a batch."""
    joining = Joining(0.0)
    last = known(joining, lambda rows: 0.01 * rows)
    joining.note_live(last)
    assert joining.alone(ModelLoad(0, 16, 2), 0, last + MOST_QUIET_SECONDS) == 2
    assert joining.alone(ModelLoad(0, 16, 2), 0, last + RECENT_SECONDS) == 32


def test_of_a_model_that_is_always_busy_one_batch_goes_when_much_is_saved_up() -> None:
    joining = Joining(0.0)
    now = known(joining, lambda rows: 0.1)
    assert joining.beside(ModelLoad(16, 8), 0, 64, now) == 0
    for _ in range(5):
        now = known(joining, lambda rows: 0.1, now)
    busy = ModelLoad(16, 8)
    assert joining.beside(busy, 0, 64, now) == 8
    joining.started(now)
    assert joining.beside(busy, 0, 64, now + 0.1) == 0
