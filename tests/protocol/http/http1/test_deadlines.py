"""How long an HTTP/1 connection waits for its client, beside a plain model of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.http.http1.deadlines import Deadlines, Look
from protocol.http.settings import LEAVE_SECONDS, ConnectionLimits

LIMITS = ConnectionLimits(idle_timeout=10, header_timeout=4)


def test_an_idle_client() -> None:
    deadlines = Deadlines(LIMITS)
    assert [deadlines.look(now, 0, is_waiting=True) for now in (0, 5, 9.9)] == [Look.NOTHING] * 3
    assert deadlines.look(10, 0, is_waiting=True) is Look.TIMED_OUT


def test_each_request_begins_the_wait_anew() -> None:
    deadlines = Deadlines(LIMITS)
    for served in range(5):
        assert deadlines.look(served * 9.0, served, is_waiting=True) is Look.NOTHING


def test_a_head_has_its_own_time_from_its_first_byte() -> None:
    """Which more of it does not bring back."""
    deadlines = Deadlines(LIMITS)
    deadlines.look(0, 1, is_waiting=True)
    for now in (7, 8, 10.9):
        deadlines.begin_head(now, 1)
        assert deadlines.look(now, 1, is_waiting=True) is Look.NOTHING
    assert deadlines.look(11, 1, is_waiting=True) is Look.TIMED_OUT


def test_a_request_is_overdue_at_the_second_look_at_it() -> None:
    deadlines = Deadlines(LIMITS)
    assert deadlines.look(0, 1, is_waiting=False) is Look.NOTHING
    assert deadlines.look(1, 1, is_waiting=False) is Look.OVERDUE
    assert deadlines.look(2, 2, is_waiting=False) is Look.NOTHING
    assert deadlines.look(100, 2, is_waiting=True) is Look.NOTHING  # it was not idle up to here
    assert deadlines.look(110, 2, is_waiting=True) is Look.TIMED_OUT


def test_a_server_that_stops_waits_for_nobody() -> None:
    deadlines = Deadlines(LIMITS)
    deadlines.look(0, 0, is_waiting=True)
    deadlines.leave(1)
    assert deadlines.look(1 + LEAVE_SECONDS / 2, 0, is_waiting=True) is Look.NOTHING
    assert deadlines.look(1 + LEAVE_SECONDS, 0, is_waiting=True) is Look.TIMED_OUT
    assert deadlines.look(50, 1, is_waiting=True) is Look.NOTHING
    assert deadlines.look(50 + LEAVE_SECONDS, 1, is_waiting=True) is Look.TIMED_OUT


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["idle", "head", "run", "request"])), max_size=60))
def test_a_client_is_given_up_in_time_and_not_before(steps: list[tuple[float, str]]) -> None:
    """Looked at every now and then. `request` is one that came and was answered between two looks."""
    deadlines = Deadlines(LIMITS)
    now, served = 0.0, 0
    since: float | None = None  # when the present wait was first seen
    head_since: float | None = None
    ran = -1
    for wait, what in steps:
        now += wait
        if what == "request":
            served += 1
            head_since = None
        elif what == "head":
            if head_since is None:
                head_since = now
            deadlines.begin_head(now, served)
        elif what == "run":
            if ran != served or head_since is not None:
                served += 1
            head_since = None
        look = deadlines.look(now, served, is_waiting=what != "run")
        if what == "run":
            assert look is (Look.OVERDUE if ran == served else Look.NOTHING)
            ran, since = served, None
        elif head_since is not None:
            assert (look is Look.TIMED_OUT) is (now >= head_since + LIMITS.header_timeout)
        else:
            if since is None or what == "request":
                since = now
            assert (look is Look.TIMED_OUT) is (now >= since + LIMITS.idle_timeout)
        if look is Look.TIMED_OUT:
            return
