"""The scaling signal, from the metrics of replicas. Pure.

Its Prometheus rules are `job:scaling_…` in `examples/observability/rules.yml`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trioton.fleet.flags import Signal

QUEUE = "nv_inference_pending_request_count"
IN_FLIGHT = "trioton_requests_in_flight"
SEQUENCES = "trioton_open_sequences"
DURATIONS = "nv_inference_request_duration_histogram_us_bucket"
NAMES = {
    Signal.QUEUE: ("the number of requests that wait for each replica", ""),
    Signal.IN_FLIGHT: ("the number of requests in flight for each replica", ""),
    Signal.P99: ("the 99th percentile of the duration of requests", " ms"),
}

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_BOUND = re.compile(r'(?:^|,)le="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Figures:
    """What the metrics of one replica say. `durations` are cumulative counts, by their upper bounds in milliseconds."""

    queued: float = 0.0
    in_flight: float = 0.0
    sequences: float = 0.0
    durations: Mapping[float, float] = field(default_factory=dict)


def read_figures(text: str) -> Figures:
    """From Prometheus' text format; of all models together."""
    sums = dict.fromkeys((QUEUE, IN_FLIGHT, SEQUENCES), 0.0)
    durations: dict[float, float] = {}
    for name, labels, value in _samples(text):
        if name in sums:
            sums[name] += value
        elif name == DURATIONS and (bound := _BOUND.search(labels)):
            upper = float(bound[1]) / 1000
            durations[upper] = durations.get(upper, 0.0) + value
    return Figures(sums[QUEUE], sums[IN_FLIGHT], sums[SEQUENCES], durations)


def _samples(text: str) -> Iterator[tuple[str, str, float]]:
    for line in text.splitlines():
        if not line.startswith("#") and (found := _SAMPLE.match(line)):
            try:
                yield found[1], found[2] or "", float(found[3])
            except ValueError:
                continue


def quantile(counts: Mapping[float, float], share: float) -> float | None:
    """Of a cumulative histogram, as Prometheus interpolates it; None where it is empty."""
    bounds = sorted(counts)
    total = counts[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    rank, lower, below = share * total, 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (rank - below) / max(counts[bound] - below, 1e-9)
        lower, below = bound, counts[bound]
    return lower


class SignalReader:
    """Makes the signal from one reading after the other; durations are those since the reading before."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self._before: Mapping[str, Figures] = {}

    def read(self, figures: Mapping[str, Figures]) -> float | None:
        """The signal of these replicas; None where they say nothing."""
        before, self._before = self._before, dict(figures)
        if not figures:
            return None
        if self._signal is Signal.QUEUE:
            return _mean([each.queued for each in figures.values()])
        if self._signal is Signal.IN_FLIGHT:
            return _mean([each.in_flight for each in figures.values()])
        return quantile(_recent(figures, before), 0.99) or 0.0  # where nobody waits for anything


def _recent(figures: Mapping[str, Figures], before: Mapping[str, Figures]) -> Mapping[float, float]:
    sums: dict[float, float] = {}
    for name, each in figures.items():
        earlier = before[name].durations if name in before else each.durations
        for bound, count in each.durations.items():
            sums[bound] = sums.get(bound, 0.0) + max(count - earlier.get(bound, 0.0), 0.0)
    return sums


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
