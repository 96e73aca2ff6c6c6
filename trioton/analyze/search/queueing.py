"""Predictions by a queueing formula: the latency of a batched model at a rate, and the greatest rate under a bound.

Requests arrive at random; instances that are idle take what waits, at most `max_batch` rows, or wait for more until the
oldest has waited for `delay`. Three parts of the wait are looked at, and the largest counts: the delay; the rest of the
batch in progress, where all instances are busy; and, near the limit, the queue's tail by Allen and Cunneen's formula
for several servers with batches for customers. It is for sorting candidates out, not for figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trioton.analyze.search.service_times import ServiceTimes

_ITERATIONS = 40
# Of the greatest rate: close enough for sorting.
_PRECISION = 0.01


@dataclass(frozen=True, slots=True)
class Setup:
    """What a configuration makes of a model. `contention` is the factor by which times grow while all instances
    compute, as where they have more threads than there are cores. `burstiness` is the variance of arrivals in a span
    over their mean: 1 for independent clients."""

    times: ServiceTimes
    instances: int = 1
    max_batch: int = 1
    delay: float = 0.0
    contention: float = 1.0
    burstiness: float = 1.0


def capacity(setup: Setup) -> float:
    """Rows a second that cannot be exceeded."""
    sizes = {1, setup.max_batch, *(rows for rows, _ in setup.times.points if rows <= setup.max_batch)}
    best = max(size / setup.times.mean(size) for size in sizes)
    return best * setup.instances / setup.contention


def latency(setup: Setup, rate: float, percent: float = 99.0) -> float:
    """Seconds below which so many per cent of requests of one row are answered; infinite beyond the capacity."""
    if rate >= capacity(setup):
        return math.inf
    share = 1 - percent / 100
    rows, seconds = _batch(setup, rate)
    busy = erlang_c(setup.instances, rate * seconds / rows)
    # A late request runs in a batch that is larger than most.
    large = min(setup.max_batch, rows + 2 * math.sqrt(rows * setup.burstiness) if rows > 1 else rows)
    service = _seconds(setup, large, min(1.0, rate * seconds / rows / setup.instances))
    service *= 1 + setup.times.variation * _normal(share)
    gathering = min(setup.delay, (setup.max_batch - 1) / rate) if setup.max_batch > 1 else 0.0
    # Of independent instances the first to end does so before this with the probability that is wanted.
    rest = seconds * (1 - (share / busy) ** (1 / setup.instances)) if busy > share else 0.0
    return service + max(gathering, rest, _tail(setup, rate, share))


def greatest_rate(setup: Setup, bound: float, percent: float = 99.0) -> float:
    """The greatest rate whose latency keeps the bound; 0 where none does."""
    low, high = 0.0, capacity(setup)
    if latency(setup, high * 1e-3, percent) > bound:
        # With a delay a low rate may wait for what a higher one need not.
        steps = [high * step / 16 for step in range(1, 16)]
        kept = [rate for rate in steps if latency(setup, rate, percent) <= bound]
        if not kept:
            return 0.0
        low = kept[-1]
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if latency(setup, middle, percent) <= bound:
            low = middle
        else:
            high = middle
    return low


def erlang_c(servers: int, load: float) -> float:
    """The probability that all servers are busy, `load` being their mean number of busy ones."""
    if load >= servers:
        return 1.0
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return servers * blocked / (servers - load * (1 - blocked))


def _batch(setup: Setup, rate: float) -> tuple[float, float]:
    """The usual number of rows in a batch, and its time: what arrives while an instance is waited for."""
    rows = 1.0
    seconds = setup.times.mean(1)
    for _ in range(_ITERATIONS):
        busy = min(1.0, rate * seconds / rows / setup.instances)
        seconds = _seconds(setup, rows, busy)
        gathered = max(rate * seconds / setup.instances * busy, 1 + rate * setup.delay if setup.delay else 1.0)
        wanted = min(float(setup.max_batch), max(1.0, gathered))
        if abs(wanted - rows) < 1e-3 * rows:
            break
        rows = (rows + wanted) / 2
    return rows, seconds


def _seconds(setup: Setup, rows: float, busy: float) -> float:
    return setup.times.mean(rows) * (1 + (setup.contention - 1) * busy)


def _tail(setup: Setup, rate: float, share: float) -> float:
    """The wait for whole batches before, which few meet but near the capacity."""
    seconds = _seconds(setup, setup.max_batch, 1.0)
    use = rate * seconds / setup.max_batch / setup.instances
    if use >= 1:  # smaller batches are the quicker ones
        use = rate / capacity(setup)
    waits = erlang_c(setup.instances, use * setup.instances)
    if waits <= share or use >= 1:
        return 0.0 if use < 1 else math.inf
    spread = (setup.burstiness / setup.max_batch + setup.times.variation**2) / 2
    return seconds / setup.instances / (1 - use) * spread * math.log(waits / share)


def _normal(share: float) -> float:
    """The quantile of the normal distribution above which such a share lies, by a rational approximation."""
    at = math.sqrt(-2 * math.log(min(max(share, 1e-9), 0.5)))
    return at - (2.30753 + 0.27061 * at) / (1 + 0.99229 * at + 0.04481 * at * at)
