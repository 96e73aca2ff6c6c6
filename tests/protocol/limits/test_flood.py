"""The policy against floods, on a clock of its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.limits.flood import FloodGuard


def test_as_many_as_allowed_at_once_and_then_as_time_goes() -> None:
    guard = FloodGuard(4)
    assert [guard.passes(100) for _ in range(6)] == [True] * 4 + [False] * 2
    assert guard.passes(100.25)
    assert not guard.passes(100.25)
    assert [guard.passes(200) for _ in range(5)] == [True] * 4 + [False]


def test_a_steady_pace_passes_for_ever() -> None:
    guard = FloodGuard(10)
    assert all(guard.passes(step / 10) for step in range(1000))


@given(st.integers(1, 50), st.lists(st.floats(0, 3), max_size=200))
def test_no_second_has_more_than_twice_the_rate(per_second: int, pauses: list[float]) -> None:
    """A full second's worth at its begin, and one more while it lasts."""
    guard = FloodGuard(per_second)
    now, passed = 0.0, []
    for pause in pauses:
        now += pause
        if guard.passes(now):
            passed.append(now)
    for start in passed:
        assert sum(start <= at < start + 1 for at in passed) <= 2 * per_second
