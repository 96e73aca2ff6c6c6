"""When measurements end, what they keep, and whether the generator was the limit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from trioton.perf.bounds import ErrorBound, LatencyBound, RateBound
from trioton.perf.figures import Figures
from trioton.perf.limits import generator_limits
from trioton.perf.load import Closed, Open
from trioton.perf.measurement import Ends, is_over, measured


def a_slice(latencies: list[float], seconds: float = 0.1, failed: int = 0, late: float = 0.0) -> Figures:
    made = Figures(seconds=seconds, sent=len(latencies), succeeded=len(latencies))
    made.latency.record_all([round(each * 1e9) for each in latencies])
    made.lateness.record_all([round(late * 1e9)] * len(latencies))
    if failed:
        made.count_error("refused", failed)
    return made


def steady(count: int) -> list[Figures]:
    drawn = random.Random(1)
    return [a_slice([drawn.uniform(0.009, 0.011) for _ in range(200)]) for _ in range(count)]


def noisy(count: int) -> list[Figures]:
    drawn = random.Random(1)
    return [a_slice([drawn.lognormvariate(-4, 2) for _ in range(drawn.randrange(1, 20))]) for _ in range(count)]


def test_it_ends_when_the_figures_are_sure() -> None:
    ends = Ends(least_seconds=2, most_seconds=10)
    assert not is_over(steady(19), ends)
    assert is_over(steady(21), ends)


def test_noise_makes_it_last_and_never_fails_it() -> None:
    ends = Ends(least_seconds=2, most_seconds=10)
    assert not is_over(noisy(60), ends)
    assert is_over(noisy(101), ends)
    found = measured(Closed(1), noisy(101), ends)
    assert not found.is_settled
    assert found.rate.relative > 0.05


def test_it_ends_early_where_a_bound_is_surely_missed_or_kept() -> None:
    ends = Ends(least_seconds=2, most_seconds=10, precision=0.0001)
    assert not is_over(steady(30), ends)
    assert is_over(steady(30), replace(ends, bound=LatencyBound(95, 0.001)))
    assert is_over(steady(30), replace(ends, bound=LatencyBound(95, 0.1)))
    assert not is_over(steady(30), replace(ends, bound=LatencyBound(95, 0.0109)))


def test_it_ends_with_a_number_of_requests() -> None:
    ends = Ends(requests=1000)
    assert not is_over(steady(4), ends)
    assert is_over(steady(5), ends)


def test_bounds_are_kept_or_missed() -> None:
    found = measured(Closed(1), [*steady(30), a_slice([], failed=60)], Ends())
    assert found.keeps(LatencyBound(99, 0.0111))
    assert not found.keeps(LatencyBound(99, 0.010))
    assert found.keeps(RateBound(1900))
    assert not found.keeps(RateBound(2100))
    assert found.keeps(ErrorBound(0.01))
    assert not found.keeps(ErrorBound(0.005))


def test_nothing_keeps_a_latency_where_nothing_has_succeeded() -> None:
    assert not measured(Closed(1), [a_slice([], failed=3)], Ends()).keeps(LatencyBound(99, 1.0))


def test_a_sender_that_is_late_is_reported() -> None:
    load = Open(100.0)
    assert generator_limits(load, a_slice([0.01] * 100, late=0.0005)) == ()
    (text,) = generator_limits(load, a_slice([0.01] * 100, late=0.005))
    assert "5 ms late" in text


def test_lateness_is_no_fault_where_the_server_takes_no_more() -> None:
    """All that may be in flight are: the next ones wait for the server."""
    figures = a_slice([0.5] * 100, late=0.4)
    figures.in_flight_seconds = 0.1 * 95
    assert generator_limits(Open(1000.0, most_in_flight=100), figures) == ()
    assert generator_limits(Open(1000.0, most_in_flight=4096), figures) != ()


@pytest.mark.parametrize(("senders", "is_limit"), [(1, True), (2, False)])
def test_a_sender_that_takes_its_core_is_reported(senders: int, is_limit: bool) -> None:
    figures = a_slice([0.01] * 100)
    figures.processor_seconds = 0.098
    assert bool(generator_limits(Closed(4), figures, senders)) == is_limit
    assert generator_limits(Closed(4), figures, senders, has_wire=False) == ()


def test_a_closed_loop_that_is_slow_to_follow_is_reported() -> None:
    assert generator_limits(Closed(1), a_slice([0.010] * 50, late=0.0001)) == ()
    assert "between an answer and the next request" in generator_limits(Closed(1), a_slice([0.010] * 50, late=0.004))[0]
