"""A batching policy driven by simulated arrivals and instances, under a clock of the simulation's own."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from actors.mail.messages import QueuedRequest
from actors.scheduling.batching.policy import BatchingPolicy, BatchTuning
from tests.actors.fakes import Caller


@dataclass(slots=True)
class Outcome:
    """What became of the requests: latencies in seconds, of those that were answered, by their arrival."""

    latencies: list[tuple[float, float]] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)  # how long each refusal took
    batches: list[int] = field(default_factory=list)
    busy_seconds: float = 0.0
    ended: float = 0.0

    def quantile(self, share: float, *, since: float = 0.0) -> float:
        latencies = sorted(latency for arrival, latency in self.latencies if arrival >= since)
        return latencies[min(int(share * len(latencies)), len(latencies) - 1)]

    @property
    def mean_batch(self) -> float:
        return sum(self.batches) / len(self.batches)

    @property
    def busy_per_request(self) -> float:
        return self.busy_seconds / len(self.latencies)


def simulate(
    policy: BatchingPolicy,
    arrivals: Iterable[float],
    compute: Callable[[int], float],
    *,
    instances: int = 1,
    tuning: BatchTuning | None = None,
) -> Outcome:
    """Requests of one row arrive at the given times; a batch of n rows takes `compute(n)` seconds."""
    outcome = Outcome()
    to_come = list(reversed(list(arrivals)))
    idle = instances
    running: list[tuple[float, int, float, tuple[QueuedRequest, ...]]] = []
    now = 0.0
    number = 0
    while to_come or running or policy.waiting:
        next_arrival = to_come[-1] if to_come else math.inf
        next_end = running[0][0] if running else math.inf
        now = max(now, min(next_arrival, next_end, policy.wake_at(is_idle=idle > 0)))
        while to_come and to_come[-1] <= now:
            item = Caller(arrival=to_come.pop()).item
            if not policy.add(item):
                outcome.refused.append(0.0)
        while running and running[0][0] <= now:
            _, _, started, items = heapq.heappop(running)
            idle += 1
            outcome.latencies += [(item.arrival, now - item.arrival) for item in items]
            if tuning is not None:
                tuning.completed(items, started=started, now=now)
        outcome.refused += [now - item.arrival for item in policy.take_expired(now)]
        while idle and (batch := policy.next_batch(now)) is not None:
            idle -= 1
            number += 1
            seconds = compute(len(batch.items))
            outcome.batches.append(len(batch.items))
            outcome.busy_seconds += seconds
            heapq.heappush(running, (now + seconds, number, now, tuple(batch.items)))
    outcome.ended = now
    return outcome


def poisson(rate: float, seconds: float, rng: random.Random, *, start: float = 0.0) -> list[float]:
    """Times of arrivals at random, `rate` a second."""
    times: list[float] = []
    now = start
    while (now := now + rng.expovariate(rate)) < start + seconds:
        times.append(now)
    return times
