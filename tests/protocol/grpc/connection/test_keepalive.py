"""When a connection is asked for a sign of life, retired or closed, and which PINGs are too many, by the clock."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.grpc.connection.keepalive import RETIRING_SECONDS, Due, Lifetime, PingPolice
from protocol.grpc.settings import ConnectionLimits, Keepalive

NEVER = Keepalive(time=math.inf)


def lifetime(limits: ConnectionLimits, *, has_calls: bool = True) -> Lifetime:
    made = Lifetime(limits, 0.0, age_factor=1.0)
    made.idle_since = math.inf if has_calls else 0.0
    return made


def history(made: Lifetime, until: float) -> list[tuple[float, Due]]:
    """What is due, and when, if one looks only when told to; ends with a CLOSE."""
    now, found = 0.0, []
    for _ in range(5000):  # the shortest interval of the tests fits 3000 times
        while (due := made.due(now)) is not None:
            found.append((now, due))
            if due in (Due.CLOSE, Due.CLOSE_DEAD):
                return found
        wake = made.wake_at(now)
        assert wake > now
        if wake > until:
            return found
        now = wake
    raise AssertionError("it wakes all the time")


def test_a_peer_that_gives_no_sign_of_life_is_dead() -> None:
    made = lifetime(ConnectionLimits(keepalive=Keepalive(time=10, timeout=3)))
    assert history(made, 100) == [(10, Due.PING), (13, Due.CLOSE_DEAD)]


def test_any_byte_is_a_sign_of_life() -> None:
    made = lifetime(ConnectionLimits(keepalive=Keepalive(time=10, timeout=3)))
    made.on_received(6)
    assert made.due(10) is None
    assert made.wake_at(10) == 16
    assert made.due(16) is Due.PING
    made.on_received(18.5)
    assert made.due(28) is None
    assert made.due(28.5) is Due.PING


@pytest.mark.parametrize(("permitted", "expected"), [(False, []), (True, [(10, Due.PING), (13, Due.CLOSE_DEAD)])])
def test_without_calls_pings_need_a_permit(permitted: bool, expected: list[tuple[float, Due]]) -> None:
    limits = ConnectionLimits(
        max_connection_idle=math.inf, keepalive=Keepalive(time=10, timeout=3, permit_without_calls=permitted)
    )
    assert history(lifetime(limits, has_calls=False), 100) == expected


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (2, 2), (0, 9)])
def test_pings_without_data_are_few(limit: int, count: int) -> None:
    """Answered ones, as the server has nothing to send; 0 is no limit. Data in between makes them anew."""
    made = lifetime(ConnectionLimits(keepalive=Keepalive(time=10, timeout=3, max_pings_without_data=limit)))

    def pings(begin: int, end: int) -> int:
        found = 0
        for now in range(begin, end):
            if made.due(now) is Due.PING:
                found += 1
                made.on_received(now)
        return found

    assert pings(0, 100) == count
    made.on_data_sent()
    assert pings(100, 200) == (count if limit else 10)


def test_an_old_connection_ends() -> None:
    """Asked first, then refused calls, then closed."""
    limits = ConnectionLimits(max_connection_age=100, max_connection_age_grace=30, keepalive=NEVER)
    expected = [(100, Due.END_OLD), (100 + RETIRING_SECONDS, Due.REFUSE_CALLS), (130, Due.CLOSE)]
    assert history(lifetime(limits), 1000) == expected


def test_without_grace_it_is_closed_at_once() -> None:
    limits = ConnectionLimits(max_connection_age=100, max_connection_age_grace=0, keepalive=NEVER)
    assert history(lifetime(limits), 1000) == [(100, Due.END_OLD), (100, Due.CLOSE)]


def test_a_grace_that_is_short_is_kept() -> None:
    limits = ConnectionLimits(max_connection_age=100, max_connection_age_grace=1, keepalive=NEVER)
    assert history(lifetime(limits), 1000) == [(100, Due.END_OLD), (101, Due.CLOSE)]


def test_ages_are_spread() -> None:
    limits = ConnectionLimits(max_connection_age=100, keepalive=NEVER)
    assert Lifetime(limits, 0, age_factor=0.9).due(90) is Due.END_OLD
    assert Lifetime(limits, 0, age_factor=1.1).due(109) is None


def test_an_idle_connection_ends() -> None:
    """Its time begins with the end of its last call."""
    made = lifetime(ConnectionLimits(max_connection_idle=60, keepalive=NEVER))
    assert made.due(100) is None
    made.idle_since = 100
    assert made.wake_at(100) == 160
    assert made.due(159) is None
    made.idle_since = math.inf
    assert made.due(165) is None
    made.idle_since = 170
    assert made.due(229) is None
    assert made.due(230) is Due.END_IDLE


def test_what_has_been_retired_is_not_retired_again() -> None:
    made = lifetime(ConnectionLimits(max_connection_age=10, max_connection_idle=10, keepalive=NEVER), has_calls=False)
    made.on_retired(8)
    assert history(made, 1000) == [(8 + RETIRING_SECONDS, Due.REFUSE_CALLS)]


def test_no_peer_is_asked_all_the_time() -> None:
    """Even if so configured."""
    made = lifetime(ConnectionLimits(keepalive=Keepalive(time=0, timeout=3)))
    assert history(made, 100) == [(1, Due.PING), (4, Due.CLOSE_DEAD)]


@given(
    st.floats(0, 100),
    st.floats(0.1, 100),
    st.floats(0.1, 100),
    st.floats(0, 100),
    st.booleans(),
    st.booleans(),
)
def test_it_never_spins_and_always_ends(
    time: float, age: float, idle: float, grace: float, permitted: bool, has_calls: bool
) -> None:
    """Whoever looks only when told to sees everything; with an age and a grace there is an end."""
    limits = ConnectionLimits(
        max_connection_age=age,
        max_connection_age_grace=grace,
        max_connection_idle=idle,
        keepalive=Keepalive(time=time, timeout=20, permit_without_calls=permitted),
    )
    found = history(lifetime(limits, has_calls=has_calls), 10_000)
    assert found[-1][1] in (Due.CLOSE, Due.CLOSE_DEAD)


def strikes(keepalive: Keepalive, times: list[float], *, has_calls: bool = True) -> list[bool]:
    police = PingPolice(keepalive)
    return [police.on_ping(now, has_calls=has_calls) for now in times]


PINGS: list[tuple[Keepalive, list[float], bool, list[bool]]] = [
    (Keepalive(), [0, 1, 2, 3], True, [False, False, False, True]),
    (Keepalive(), [0, 300, 600, 900], True, [False] * 4),
    (Keepalive(), [0, 300, 600, 900, 1200], False, [False, False, False, True, True]),
    (Keepalive(permit_without_calls=True), [0, 300, 600, 900], False, [False] * 4),
    (Keepalive(max_ping_strikes=0), [0] * 50, True, [False] * 50),
    (Keepalive(max_ping_strikes=1), [0, 1, 2], True, [False, False, True]),
    (Keepalive(min_recv_ping_interval_without_data=0), [0] * 9, True, [False] * 9),
    (Keepalive(min_recv_ping_interval_without_data=10), [0, 9, 19, 28, 37], True, [False, False, False, False, True]),
]


@pytest.mark.parametrize(("keepalive", "times", "has_calls", "expected"), PINGS)
def test_pings_that_come_too_early_are_strikes(
    keepalive: Keepalive, times: list[float], has_calls: bool, expected: list[bool]
) -> None:
    assert strikes(keepalive, times, has_calls=has_calls) == expected


def test_data_forgives_all_strikes() -> None:
    police = PingPolice(Keepalive())
    for _ in range(10):
        assert [police.on_ping(now, has_calls=True) for now in (0, 0, 0)] == [False] * 3
        police.on_data_sent()
