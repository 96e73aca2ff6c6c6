"""Quantiles over the last observations: exact, and forgetful by age and by number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actors.metrics.sliding_window import SlidingWindow


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_quantiles_by_nearest_rank() -> None:
    window = SlidingWindow((0.0, 0.5, 0.9, 0.99, 1.0), clock=Clock())
    for value in range(100, 0, -1):
        window.observe(float(value))
    frozen = window.frozen()
    assert frozen.quantiles == ((0.0, 1.0), (0.5, 50.0), (0.9, 90.0), (0.99, 99.0), (1.0, 100.0))
    assert (frozen.count, frozen.total) == (100, 5050.0)


def test_a_value_counts_as_often_as_it_was_observed() -> None:
    window = SlidingWindow((0.5,), clock=Clock())
    window.observe(1.0)
    window.observe(9.0, 5)
    frozen = window.frozen()
    assert (frozen.count, frozen.total, frozen.quantiles) == (6, 46.0, ((0.5, 9.0),))


def test_an_empty_window_has_no_quantiles() -> None:
    assert SlidingWindow((0.5,)).frozen().quantiles == ((0.5, None),)


def test_old_observations_leave_the_window_but_not_the_sums() -> None:
    clock = Clock()
    window = SlidingWindow((1.0,), max_age=60.0, clock=clock)
    window.observe(8.0)
    clock.now = 30.0
    window.observe(2.0)
    assert window.frozen().quantiles == ((1.0, 8.0),)
    clock.now = 61.0
    frozen = window.frozen()
    assert (frozen.count, frozen.total, frozen.quantiles) == (2, 10.0, ((1.0, 2.0),))
    clock.now = 100.0
    assert window.frozen().quantiles == ((1.0, None),)


def test_memory_is_bounded() -> None:
    window = SlidingWindow((0.0,), capacity=10, clock=Clock())
    for value in range(1000):
        window.observe(float(value))
    frozen = window.frozen()
    assert (frozen.count, frozen.quantiles) == (1000, ((0.0, 990.0),))


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 5)), min_size=1, max_size=50),
    st.floats(0, 1),
)
def test_as_many_as_it_says_do_not_exceed_a_quantile(observed: list[tuple[float, int]], quantile: float) -> None:
    window = SlidingWindow((quantile,), clock=Clock())
    for value, count in observed:
        window.observe(value, count)
    ((_, found),) = window.frozen().quantiles
    everything = sorted(value for value, count in observed for _ in range(count))
    assert found in everything
    wanted = quantile * len(everything)
    assert sum(value <= found for value in everything) >= wanted
    assert sum(value < found for value in everything) <= wanted
