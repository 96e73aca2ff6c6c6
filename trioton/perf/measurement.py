"""Measurement of one load: when it ends, and what it has found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from trioton.perf import confidence
from trioton.perf.bounds import Bound, ErrorBound, LatencyBound, RateBound
from trioton.perf.confidence import Estimate
from trioton.perf.figures import NANOSECONDS, Figures, joined
from trioton.perf.histogram import Histogram
from trioton.perf.load import Load
from trioton.perf.server_side import ServerFigures

_Part: TypeAlias = Callable[[Figures], Histogram]

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """When a measurement ends: as soon as rate and latency are known well enough, and at the latest after
    `most_seconds`. It never fails for noise: how well they are known is part of what is told.

    Attributes:
        precision: the margin of 95 % confidence that is good enough, as a part of the figure.
        percent: the percentile of latency that is to be known so well; None for the mean.
        warmup_seconds: load that is not counted; requests in flight at its end run on into the measurement.
        least_seconds: the shortest measurement.
        most_seconds: the longest.
        requests: if given, it ends when so many have ended, and not before `most_seconds` else.
        slice_seconds: of the slices whose spread tells how sure the figures are.
        bound: if given, it ends also when this is surely kept or surely missed.
    """

    precision: float = 0.05
    percent: float | None = 95.0
    warmup_seconds: float = 1.0
    least_seconds: float = 2.0
    most_seconds: float = 10.0
    requests: int | None = None
    slice_seconds: float = 0.1
    bound: LatencyBound | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one load has shown. Latencies are in seconds.

    Attributes:
        rate: requests that succeeded a second.
        mean: of the latency from the planned moment.
        percentiles: of the same; those that the count allows.
        figures: of the whole measurement, with all histograms.
        slices: of its parts, in order.
        is_settled: whether the precision that was asked for was reached.
        server: what the server says of the same window; None where it does not tell.
        limits: why the generator and not the server was the limit, in words; empty where it was not.
        started_at: seconds since the epoch.
    """

    load: Load
    rate: Estimate
    mean: Estimate
    percentiles: Mapping[float, Estimate]
    figures: Figures
    slices: Sequence[Figures] = field(repr=False)
    is_settled: bool = False
    server: ServerFigures | None = None
    limits: tuple[str, ...] = ()
    started_at: float = 0.0

    @property
    def seconds(self) -> float:
        return self.figures.seconds

    @property
    def latency(self) -> Histogram:
        """From the planned moment to the last response, in nanoseconds."""
        return self.figures.latency

    @property
    def error_share(self) -> float:
        ended = self.figures.succeeded + self.figures.failed
        return self.figures.failed / ended if ended else 0.0

    def percentile(self, percent: float) -> float:
        """Of the latency, in seconds, whether the count allows it or not."""
        return self.figures.latency.percentile(percent) / NANOSECONDS

    def keeps(self, bound: Bound) -> bool:
        """Whether the figures themselves keep a bound, whatever their margins. Nothing keeps a latency where nothing
        has succeeded."""
        if isinstance(bound, RateBound):
            return self.rate.value >= bound.rate
        if isinstance(bound, ErrorBound):
            return self.error_share <= bound.share
        return bool(subject(bound)(self.figures).count) and bounded(self.slices, bound).value <= bound.seconds


def subject(bound: LatencyBound) -> _Part:
    """The histogram that a bound is on."""
    return _PARTS[bound.subject]


def bounded(slices: Sequence[Figures], bound: LatencyBound) -> Estimate:
    """The figure that a bound is on, in seconds."""
    part = subject(bound)
    if bound.percent is None:
        return in_seconds(confidence.mean(slices, part))
    return in_seconds(confidence.percentile(slices, bound.percent, part))


def in_seconds(estimate: Estimate) -> Estimate:
    return Estimate(estimate.value / NANOSECONDS, estimate.margin / NANOSECONDS)


def measured(
    load: Load,
    slices: Sequence[Figures],
    ends: Ends,
    *,
    server: ServerFigures | None = None,
    limits: tuple[str, ...] = (),
    started_at: float = 0.0,
) -> Measurement:
    """What slices amount to."""
    figures = joined(slices)
    percents = sorted({*PERCENTS, *(() if ends.percent is None else (ends.percent,))})
    return Measurement(
        load=load,
        rate=confidence.rate(slices),
        mean=in_seconds(confidence.mean(slices, _latency)),
        percentiles={
            percent: in_seconds(confidence.percentile(slices, percent, _latency))
            for percent in percents
            if figures.latency.allows(percent)
        },
        figures=figures,
        slices=tuple(slices),
        is_settled=is_settled(slices, ends),
        server=server,
        limits=limits,
        started_at=started_at,
    )


def is_settled(slices: Sequence[Figures], ends: Ends) -> bool:
    """Whether rate and latency are known as well as is asked for."""
    if confidence.rate(slices).relative > ends.precision:
        return False
    if ends.percent is None:
        return confidence.mean(slices, _latency).relative <= ends.precision
    return confidence.percentile(slices, ends.percent, _latency).relative <= ends.precision


def is_over(slices: Sequence[Figures], ends: Ends) -> bool:
    """Whether a measurement of these slices ends."""
    seconds = sum(each.seconds for each in slices)
    if ends.requests is not None:
        return ends.requests <= sum(each.succeeded + each.failed + each.cancelled for each in slices)
    if seconds >= ends.most_seconds:
        return True
    if seconds < ends.least_seconds:
        return False
    if ends.bound is not None and is_judged(slices, ends.bound):
        return True
    return is_settled(slices, ends)


def is_judged(slices: Sequence[Figures], bound: LatencyBound) -> bool:
    """Whether a bound is surely kept or surely missed."""
    found = bounded(slices, bound)
    return math.isfinite(found.margin) and abs(found.value - bound.seconds) > found.margin


def _latency(figures: Figures) -> Histogram:
    return figures.latency


_PARTS: Mapping[str, _Part] = {
    "latency": _latency,
    "service": lambda figures: figures.service,
    "first": lambda figures: figures.first,
    "gaps": lambda figures: figures.gaps,
}
