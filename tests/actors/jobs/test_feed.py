"""How many items of jobs a model is given."""

from __future__ import annotations

import pytest

from actors.jobs.feed import MOST_RETRY_SECONDS, Lane, retry_seconds
from protocol.jobs.execution import ModelLoad


@pytest.mark.parametrize(
    ("own", "live", "capacity", "room"),
    [
        (0, 0, 8, 10),  # a quarter more than it runs
        (10, 0, 8, 0),
        (0, 0, 1, 2),
        (0, 1, 1, 0),  # it is busy with live requests
        (0, 3, 8, 5),  # idle places of a batch
        (5, 3, 8, 0),
        (0, 8, 8, 0),
        (0, 100, 8, 0),  # live requests wait
        (10, 4, 8, 0),
        (0, 0, 0, 16),  # nothing is known of it
        (4, 4, 0, 8),
        (0, 0, 1000, 16),  # never more than the most
    ],
)
def test_the_room_beside_live_requests(own: int, live: int, capacity: int, room: int) -> None:
    lane = Lane(16, in_flight=own)
    assert lane.room(ModelLoad(own + live, capacity), 0.0) == room


def test_a_model_that_is_not_available_gets_nothing_for_a_while() -> None:
    lane, load = Lane(16, in_flight=4), ModelLoad(0, 8)
    lane.ended(was_available=False, now=100.0)
    assert (lane.not_before, lane.room(load, 100.4)) == (100.5, 0)
    lane.ended(was_available=False, now=100.1)  # one that it had at the same time
    assert (lane.not_before, lane.in_flight) == (100.5, 2)
    lane.ended(was_available=False, now=100.5)
    assert lane.not_before == 101.5
    lane.ended(was_available=True, now=102.0)
    assert lane.room(load, 102.0) == 10
    lane.in_flight = 1
    lane.ended(was_available=False, now=102.0)
    assert lane.not_before == 102.5


def test_waits_grow_to_a_limit() -> None:
    waits = [retry_seconds(failures) for failures in range(10)]
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert waits[-1] == retry_seconds(10_000) == MOST_RETRY_SECONDS
