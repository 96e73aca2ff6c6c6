"""A simulated model: service times of batches, instances, a batcher with a delay, and requests at random."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trioton.analyze.search.candidates import Outcome, Trial
from trioton.analyze.search.plan import Plan
from trioton.analyze.search.queueing import Setup, capacity, greatest_rate
from trioton.analyze.search.service_times import service_times
from trioton.analyze.space.axes import AxesSpace, Axis

OVERHEAD = 0.6  # seconds that a trial takes besides its load
MOST_REQUESTS = 12_000


@dataclass(frozen=True)
class Surface:
    """How a model's time depends on its configuration. Threads share `cores`; `hidden` is the factor of times that no
    formula knows, by the option of an axis."""

    fixed: float
    row: float
    power: float
    threads: float
    cores: int
    bound: float
    noise: float
    hidden: Mapping[str, float]
    tile: int = 1

    def seconds(self, rows: int, threads: int) -> float:
        rows = -(-rows // self.tile) * self.tile
        speed = threads**self.threads
        return float((self.fixed + self.row * rows**self.power) / speed)

    def contention(self, instances: int, threads: int) -> float:
        return max(1.0, instances * threads / self.cores)


def random_surface(seed: int) -> Surface:
    draw = random.Random(seed)
    fixed = 10 ** draw.uniform(-3.3, -2.2)
    row = fixed * 10 ** draw.uniform(-2, 0)
    return Surface(
        fixed,
        row,
        power=draw.uniform(0.7, 1.15),
        threads=draw.uniform(0.0, 0.9),
        cores=draw.choice([2, 4, 8]),
        bound=(fixed + row) * draw.uniform(4, 20),
        noise=draw.uniform(0.03, 0.25),
        hidden={"process": 1.0, "threads": draw.uniform(0.8, 1.25), "fork": draw.uniform(0.9, 1.1)},
        tile=draw.choice([1, 1, 4]),
    )


def latencies(
    surface: Surface,
    settings: Mapping[str, str],
    rate: float,
    count: int,
    seed: int,
    batches: list[tuple[int, float]] | None = None,
) -> list[float]:
    """Seconds of each request; sizes and times of batches go to the list."""
    instances, threads = int(settings["instances"]), int(settings["threads"])
    most, delay = int(settings["batch"]), float(settings["delay"])
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(1 / rate, count)).tolist()
    sigma = math.sqrt(math.log(1 + surface.noise**2))
    factors = draw.lognormal(-(sigma**2) / 2, sigma, count).tolist()
    slower = surface.contention(instances, threads)
    hidden = surface.hidden[settings["isolation"]]
    times = [0.0, *(surface.seconds(rows, threads) * hidden for rows in range(1, most + 1))]
    free = [0.0] * instances
    found: list[float] = []
    at = 0
    while at < count:
        begin = max(heapq.heappop(free), arrivals[at])
        if delay:
            full = arrivals[at + most - 1] if at + most <= count else math.inf
            begin = max(begin, min(arrivals[at] + delay, full))
        last = at
        while last < count and last - at < most and arrivals[last] <= begin:
            last += 1
        busy = sum(each > begin for each in free) / max(1, instances - 1) if instances > 1 else 1.0
        end = begin + times[last - at] * factors[at] * (1 + (slower - 1) * busy)
        if batches is not None:
            batches.append((last - at, end - begin))
        found += [end - arrival for arrival in arrivals[at:last]]
        heapq.heappush(free, end)
        at = last
    return found


def outcome_of(surface: Surface, settings: Mapping[str, str], trial: Trial, seed: int) -> Outcome:
    count = min(MOST_REQUESTS, max(20, int(trial.rate * trial.seconds)))
    found = latencies(surface, settings, trial.rate, count, seed)
    took = max(found[-1] + count / trial.rate, 1e-9)
    memory = 200 + 100 * int(settings["instances"]) + int(settings["batch"])
    return Outcome(
        achieved=min(trial.rate, count / took),
        latency=float(np.percentile(found, 99)),
        cost=trial.seconds + OVERHEAD,
        memory=memory << 20,
    )


def space_of(surface: Surface) -> AxesSpace:
    """What a formula knows of the surface: the times of some batch sizes."""
    delays = ("0", f"{surface.bound / 6:.6f}")
    axes = [
        Axis("instances", ("1", "2", "3", "4"), is_predicted=True, order=("1", "2", "3", "4")),
        Axis("threads", ("1", "2", "4"), is_predicted=True, order=("1", "2", "4")),
        Axis("batch", ("4", "1", "8", "16", "32"), is_predicted=True, order=("1", "4", "8", "16", "32")),
        Axis("delay", delays, is_predicted=True, order=delays),
        Axis("isolation", ("process", "threads", "fork")),
    ]

    def predict(settings: Mapping[str, str]) -> float:
        return greatest_rate(setup_of(surface, settings), surface.bound)

    return AxesSpace(axes, predict)


def setup_of(surface: Surface, settings: Mapping[str, str]) -> Setup:
    instances, threads = int(settings["instances"]), int(settings["threads"])
    sizes = (1, 2, 4, 8, 16, 32)
    times = service_times({size: surface.seconds(size, threads) for size in sizes}, surface.noise)
    slower = surface.contention(instances, threads)
    return Setup(times, instances, int(settings["batch"]), float(settings["delay"]), slower)


def whole(space: AxesSpace, key: str) -> dict[str, str]:
    """All settings of a candidate, the default's included."""
    return {**{axis.name: axis.options[0] for axis in space.axes}, **space.settings[key]}


def run(surface: Surface, space: AxesSpace, plan: Plan, seed: int = 0, most_trials: int | None = None) -> int:
    """Answers the plan's trials; how many there were."""
    trials = plan.trials()
    count = 0
    try:
        trial = next(trials)
        while most_trials is None or count < most_trials:
            count += 1
            trial = trials.send(outcome_of(surface, whole(space, trial.candidate), trial, seed + count))
    except StopIteration:
        pass
    return count


def true_rate(surface: Surface, settings: Mapping[str, str], beyond: float = 0.0, count: int = 4_000) -> float:
    """The greatest rate that keeps the bound, within 1 %; 0 where it is not above `beyond`."""

    def is_kept(rate: float) -> bool:
        return float(np.percentile(latencies(surface, settings, rate, count, seed=99), 99)) <= surface.bound

    if beyond and (limit(surface, settings) <= beyond or not is_kept(beyond)):
        return 0.0
    low = high = beyond or max(1.0, greatest_rate(setup_of(surface, settings), surface.bound))
    while low > 1 and not is_kept(low):
        low /= 1.2
    while is_kept(high):
        high *= 1.2
    low = max(low, high / 1.2 if high > low else low)
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_kept(middle) else (low, middle)
    return low


def limit(surface: Surface, settings: Mapping[str, str]) -> float:
    """What no rate can be above."""
    return 1.02 * capacity(setup_of(surface, settings)) / surface.hidden[settings["isolation"]]


def brute_force(surface: Surface, space: AxesSpace) -> tuple[float, dict[str, str]]:
    """The best of all combinations."""
    names = [axis.name for axis in space.axes]
    every = [dict(zip(names, options, strict=True)) for options in itertools.product(*(a.options for a in space.axes))]
    best, found = 0.0, {}
    for settings in sorted(every, key=lambda each: -space.predict(each)):  # type: ignore[operator]
        rate = true_rate(surface, settings, best)
        if rate > best:
            best, found = rate, settings
    return best, found
