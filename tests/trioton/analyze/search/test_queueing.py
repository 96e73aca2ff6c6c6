"""The formula, beside known results and a simulation."""

from __future__ import annotations

import math
import random

import pytest

from tests.trioton.analyze.search.simulation import random_surface, setup_of, space_of, true_rate
from trioton.analyze.search.queueing import Setup, capacity, erlang_c, greatest_rate, latency
from trioton.analyze.search.service_times import service_times

TIMES = service_times({1: 0.010, 4: 0.016, 8: 0.024})


@pytest.mark.parametrize(("servers", "load", "expected"), [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (2, 1.5, 0.642857)])
def test_erlangs_formula(servers: int, load: float, expected: float) -> None:
    assert erlang_c(servers, load) == pytest.approx(expected, rel=1e-5)
    assert erlang_c(servers, servers) == 1.0


def test_service_times_between_and_beyond_what_was_measured() -> None:
    assert TIMES.mean(1) == 0.010
    assert TIMES.mean(2) == pytest.approx(0.012)
    assert TIMES.mean(16) == pytest.approx(0.040)
    assert service_times({2: 0.004}).mean(8) == pytest.approx(0.016)
    with pytest.raises(ValueError, match="at least one"):
        service_times({})


def test_capacity() -> None:
    assert capacity(Setup(TIMES)) == pytest.approx(100)
    assert capacity(Setup(TIMES, instances=2, max_batch=8)) == pytest.approx(2 * 8 / 0.024)
    assert capacity(Setup(TIMES, instances=2, max_batch=8, contention=2.0)) == pytest.approx(8 / 0.024)


def test_latency_grows_to_infinity() -> None:
    setup = Setup(TIMES, max_batch=8)
    rates = [rate for rate in range(10, 340, 10) if rate < capacity(setup)]
    found = [latency(setup, rate) for rate in rates]
    assert found == sorted(found)
    assert latency(setup, 400) == math.inf


def test_greatest_rate() -> None:
    setup = Setup(TIMES, max_batch=8)
    assert greatest_rate(setup, 0.005) == 0.0
    rate = greatest_rate(setup, 0.040)
    assert latency(setup, rate) <= 0.040 < latency(setup, 1.05 * rate)


def test_a_delay_longer_than_the_bound() -> None:
    assert greatest_rate(Setup(TIMES, max_batch=8, delay=0.1), 0.080) > 100  # it is full before
    assert greatest_rate(Setup(TIMES, max_batch=1000, delay=0.1), 0.080) == 0.0


@pytest.mark.slow
def test_beside_a_simulation() -> None:
    """Half of all predictions are within 8 %, nine tenths within 30 %."""
    off = []
    for seed in range(12):
        surface, draw = random_surface(seed), random.Random(seed)
        space = space_of(surface)
        for _ in range(3):
            settings = {axis.name: draw.choice(axis.options) for axis in space.axes} | {"isolation": "process"}
            predicted = greatest_rate(setup_of(surface, settings), surface.bound)
            off.append(abs(math.log(predicted / true_rate(surface, settings, count=6_000))))
    off.sort()
    assert off[len(off) // 2] < 0.08
    assert off[len(off) * 9 // 10] < 0.3
