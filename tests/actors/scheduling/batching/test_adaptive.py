"""Adaptive batching: its settings, its rules, and simulations against fixed delays under virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from actors.scheduling.batching.adaptive import (
    AdaptiveBatchingPolicy,
    AdaptiveSettings,
    AdaptiveTuning,
    ArrivalRate,
    read_adaptive_settings,
)
from actors.scheduling.batching.dynamic import DynamicBatchingPolicy
from protocol.errors import InvalidArgument
from repository.model_config import ModelDynamicBatching
from repository.pbtxt import parse_pbtxt
from tests.actors.fakes import Caller
from tests.actors.simulation import Outcome, poisson, simulate

P99 = 0.050
MAX_BATCH_SIZE = 32


def config_text(value: str, *, batching: str = "dynamic_batching { }", max_batch_size: int = 8) -> str:
    parameter = f'parameters {{ key: "adaptive_batching" value {{ string_value: "{value}" }} }}'
    return f'name: "m" max_batch_size: {max_batch_size} {batching} {parameter}'


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        ("20000", AdaptiveSettings(p99=0.02)),
        (" p99_microseconds = 20000 ", AdaptiveSettings(p99=0.02)),
        (
            "p99_microseconds=20000,max_delay_microseconds=5000,window_microseconds=250000",
            AdaptiveSettings(p99=0.02, max_delay=0.005, window=0.25),
        ),
        ("", None),
    ],
)
def test_settings(value: str, settings: AdaptiveSettings | None) -> None:
    assert read_adaptive_settings(parse_pbtxt(config_text(value), source="test")) == settings


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (config_text("soon"), "expected 'p99_microseconds' as a positive number of microseconds, got 'soon'"),
        (config_text("0"), "expected 'p99_microseconds' as a positive number of microseconds, got '0'"),
        (config_text("p99_microseconds=-1"), "expected 'p99_microseconds' as a positive number"),
        (config_text("max_delay_microseconds=5"), "must give 'p99_microseconds'"),
        (config_text("p99=5"), "expected one of p99_microseconds, max_delay_microseconds, window_microseconds"),
        (config_text("p99_microseconds=5,7"), "expected a list of different <key>=<value>"),
        (config_text("p99_microseconds=5,p99_microseconds=6"), "expected a list of different <key>=<value>"),
        (config_text("9", batching=""), "needs 'dynamic_batching' and a 'max_batch_size' above 0"),
        (config_text("9", max_batch_size=0), "needs 'dynamic_batching' and a 'max_batch_size' above 0"),
        (config_text("9", batching="dynamic_batching { max_queue_delay_microseconds: 1 }"), "picks delay and size"),
        (config_text("9", batching="dynamic_batching { preferred_batch_size: 4 }"), "picks delay and size"),
    ],
)
def test_wrong_settings_say_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_adaptive_settings(parse_pbtxt(text, source="test"))
    assert caught.value.message.startswith("model 'm', parameter 'adaptive_batching': ")
    assert reason in caught.value.message


def test_the_arrival_rate_follows_the_arrivals() -> None:
    rate = ArrivalRate(window=1.0)
    for number in range(5000):
        rate.arrived(2, number / 100)
    assert rate.value(50.0) == pytest.approx(200, rel=0.02)
    assert rate.value(51.0) == pytest.approx(200 / 2.718, rel=0.02)
    assert rate.value(70.0) < 0.001


# Rules, by what a tuning picks after it has seen batches of some cost at some rate.


def picked(
    compute: Callable[[int], float], *, rate: float, instances: int = 1, max_delay: float = 1.0, late: int = 0
) -> tuple[float, int, int]:
    tuning = AdaptiveTuning(
        AdaptiveSettings(P99, max_delay=max_delay), max_batch_size=MAX_BATCH_SIZE, instances=instances
    )
    for number in range(1, 201):
        size = 1 + number % 8
        tuning.completed([Caller(size, arrival=0.0).item], started=0.0, now=compute(size))
    for _ in range(late):
        tuning.completed([Caller(1, arrival=-1.0).item], started=0.0, now=compute(1))
    for number in range(int(rate * 10)):
        tuning.arrived(1, number / rate)
    setting = tuning.setting(10.0)
    return setting.delay, setting.size, setting.limit


def test_nothing_is_picked_before_anything_is_known() -> None:
    tuning = AdaptiveTuning(AdaptiveSettings(P99), max_batch_size=32, instances=1)
    setting = tuning.setting(0.0)
    assert (setting.delay, setting.limit) == (0.0, 32)


def test_where_batching_gains_the_target_is_used_up_but_not_passed() -> None:
    delay, size, limit = picked(lambda n: 0.010 + 0.0002 * n, rate=500)
    assert (size, limit) == (30, 32)
    assert 0.025 < delay <= P99 - 0.016


def test_where_compute_grows_with_the_rows_nobody_waits() -> None:
    delay, size, limit = picked(lambda n: 0.001 * n, rate=500)
    assert (delay, size) == (0.0, 1)
    assert limit == 24, "two such batches fit into the target"


@pytest.mark.parametrize("rate", [1.0, 20.0])
def test_nobody_waits_for_company_that_is_not_expected(rate: float) -> None:
    assert picked(lambda n: 0.010 + 0.0002 * n, rate=rate)[0] == 0.0


def test_the_delay_is_no_longer_than_a_batch_takes_to_fill() -> None:
    delay, size, _ = picked(lambda n: 0.004 + 0.0005 * n, rate=3000)
    assert delay == pytest.approx(2 * (size - 1) / 3000, rel=0.1)


def test_the_delay_keeps_its_own_bound() -> None:
    assert picked(lambda n: 0.010 + 0.0002 * n, rate=500, max_delay=0.003)[0] == 0.003


def test_batches_that_the_target_does_not_allow_run_only_in_overload() -> None:
    def compute(rows: int) -> float:
        return 0.010 + 0.002 * rows

    assert picked(compute, rate=100)[2] == 7
    assert picked(compute, rate=480)[2] == MAX_BATCH_SIZE
    assert picked(compute, rate=480, instances=4)[2] == 7


def test_batches_that_come_late_shorten_the_delay() -> None:
    def compute(rows: int) -> float:
        return 0.010 + 0.0002 * rows

    assert picked(compute, rate=500, late=5)[0] < picked(compute, rate=500)[0]
    assert picked(compute, rate=500, late=100)[0] == 0.0


def test_a_request_larger_than_the_limit_goes_alone() -> None:
    tuning = AdaptiveTuning(AdaptiveSettings(P99), max_batch_size=32, instances=1)
    policy = AdaptiveBatchingPolicy(ModelDynamicBatching(), max_batch_size=32, tuning=tuning)
    for size in (1, 2, 3, 1, 2, 3):
        tuning.completed([Caller(size).item], started=0.0, now=0.010 * size)
    assert tuning.setting(0.0).limit == 2
    for size in (5, 1, 1):
        assert policy.add(Caller(size).item)
    batches = list(iter(lambda: policy.next_batch(0.0), None))
    assert [[item.batch_size for item in batch.items] for batch in batches] == [[5], [1, 1]]


# Simulations: random arrivals, compute times that scatter by a tenth.


def adaptive(arrivals: Iterable[float], compute: Callable[[int], float], *, instances: int = 1) -> Outcome:
    tuning = AdaptiveTuning(AdaptiveSettings(P99), max_batch_size=MAX_BATCH_SIZE, instances=instances)
    policy = AdaptiveBatchingPolicy(ModelDynamicBatching(), max_batch_size=MAX_BATCH_SIZE, tuning=tuning)
    return simulate(policy, arrivals, compute, instances=instances, tuning=tuning)


def fixed(arrivals: Iterable[float], compute: Callable[[int], float], delay: float, *, instances: int = 1) -> Outcome:
    batching = ModelDynamicBatching(max_queue_delay_microseconds=int(delay * 1e6))
    policy = DynamicBatchingPolicy(batching, max_batch_size=MAX_BATCH_SIZE)
    return simulate(policy, arrivals, compute, instances=instances)


def scattered(first: float, more: float, rng: random.Random) -> Callable[[int], float]:
    return lambda rows: (first + more * rows) * (1 + 0.1 * rng.random())


@pytest.mark.slow
@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize("rate", [5, 50, 200, 500, 1000])
@pytest.mark.parametrize("cost", [(0.004, 0.0005), (0.010, 0.0002), (0.001, 0.0)])
def test_it_keeps_the_p99_at_every_rate(rate: float, instances: int, cost: tuple[float, float]) -> None:
    arrivals = poisson(rate, 8.0, random.Random(1))
    outcome = adaptive(arrivals, scattered(*cost, random.Random(2)), instances=instances)
    assert outcome.quantile(0.99, since=1.0) <= P99


@pytest.mark.slow
@pytest.mark.parametrize("rate", [200, 500, 1000])
def test_it_needs_little_more_compute_than_a_delay_that_misses_the_p99(rate: float) -> None:
    """And far less than no delay, though that keeps the p99 as well."""
    cost = (0.004, 0.0005)
    arrivals = poisson(rate, 8.0, random.Random(1))
    chosen = adaptive(arrivals, scattered(*cost, random.Random(2)))
    none, long = (fixed(arrivals, scattered(*cost, random.Random(2)), delay) for delay in (0.0, 0.04))
    assert long.quantile(0.99) > P99
    assert chosen.busy_per_request <= 1.2 * long.busy_per_request
    assert chosen.busy_per_request <= 0.8 * none.busy_per_request


def test_at_a_low_rate_it_is_as_quick_as_no_delay() -> None:
    arrivals = poisson(5, 60.0, random.Random(1))
    chosen = adaptive(arrivals, scattered(0.004, 0.0005, random.Random(2)))
    long = fixed(arrivals, scattered(0.004, 0.0005, random.Random(2)), 0.04)
    assert chosen.quantile(0.5) < 0.006
    assert long.quantile(0.5) > 0.040


def test_it_follows_a_rate_that_changes() -> None:
    """Quiet, busy, quiet: it keeps the p99 in each, and waits only in the busy one."""
    rng = random.Random(1)
    arrivals = [
        *poisson(5, 10.0, rng),
        *poisson(800, 10.0, rng, start=10.0),
        *poisson(5, 20.0, rng, start=20.0),
    ]
    outcome = adaptive(arrivals, scattered(0.004, 0.0005, random.Random(2)))

    def between(start: float, end: float) -> list[float]:
        return sorted(latency for arrival, latency in outcome.latencies if start <= arrival < end)

    for start, end in ((0.0, 10.0), (10.0, 20.0), (25.0, 40.0)):
        latencies = between(start, end)
        assert latencies[int(0.99 * len(latencies))] <= P99
    assert between(0.0, 10.0)[25] < 0.006
    assert between(12.0, 20.0)[len(between(12.0, 20.0)) // 2] > 0.010
    assert between(25.0, 40.0)[30] < 0.006


@pytest.mark.slow
def test_in_overload_it_is_as_good_as_the_largest_batches_without_delay() -> None:
    arrivals = poisson(2000, 4.0, random.Random(1))
    cost = (0.004, 0.0005)  # at most 1600 a second
    chosen = adaptive(arrivals, scattered(*cost, random.Random(2)))
    none = fixed(arrivals, scattered(*cost, random.Random(2)), 0.0)
    assert chosen.ended <= 1.01 * none.ended
