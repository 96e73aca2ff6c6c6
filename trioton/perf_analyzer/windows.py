"""Windows of a measurement, and when three of them are alike, by perf_analyzer's rules. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from trioton.perf.figures import NANOSECONDS, Figures, joined
from trioton.perf_analyzer.options import Options, WindowKind

# So many windows have to be alike, and are the result as one.
ALIKE = 3
# The shortest window that a number of requests ends.
LEAST_SECONDS = 1.0


class Verdict(enum.Enum):
    """Of the windows so far."""

    GOES_ON = enum.auto()
    STABLE = enum.auto()
    UNSTABLE = enum.auto()


@dataclass(frozen=True, slots=True)
class Rules:
    """What ends a window, and what ends a measurement."""

    kind: WindowKind
    seconds: float
    requests: int
    stability: float
    trials: int
    percent: int | None
    latency_limit: float
    judges_latency: bool

    @classmethod
    def of(cls, options: Options) -> Rules:
        return cls(
            kind=options.window,
            seconds=options.window_seconds,
            requests=options.window_requests,
            stability=options.stability,
            trials=options.trials,
            percent=options.percent,
            latency_limit=options.latency_limit,
            judges_latency=not options.is_async,
        )

    @property
    def slice_seconds(self) -> float:
        """How often to look at what has come."""
        return min(self.seconds, 0.1) if self.kind is WindowKind.COUNT else self.seconds

    def ends_window(self, slices: Sequence[Figures]) -> bool:
        """Whether slices are a whole window."""
        seconds = sum(each.seconds for each in slices)
        if self.kind is WindowKind.TIME:
            return seconds >= self.seconds * (1 - 1e-3)  # one slice, of about so long
        ended = sum(each.succeeded + each.failed + each.cancelled for each in slices)
        return ended >= self.requests and seconds >= LEAST_SECONDS

    def latency(self, figures: Figures) -> float:
        """What is judged, in seconds: the mean, or the percentile that was asked for."""
        histogram = figures.latency
        return (histogram.mean if self.percent is None else histogram.percentile(self.percent)) / NANOSECONDS

    def judge(self, windows: Sequence[Figures]) -> Verdict:
        """Three in a row that are alike, or all of them beyond the limit, are enough."""
        last = windows[-ALIKE:]
        if len(last) == ALIKE and (self.are_alike(last) or all(map(self.is_over_limit, last))):
            return Verdict.STABLE
        return Verdict.UNSTABLE if len(windows) >= self.trials else Verdict.GOES_ON

    def are_alike(self, windows: Sequence[Figures]) -> bool:
        """Whether throughput, and latency where that is judged, differ by no more than they may."""
        rates = [inference_rate(each) for each in windows]
        latencies = [self.latency(each) for each in windows]
        if min(rates) == 0:
            return False
        most = 1 + self.stability
        return max(rates) <= min(rates) * most and (not self.judges_latency or max(latencies) <= min(latencies) * most)

    def is_over_limit(self, figures: Figures) -> bool:
        return bool(self.latency_limit) and self.latency(figures) > self.latency_limit


def inference_rate(figures: Figures) -> float:
    """Inferences a second: requests that succeeded, times their batch sizes."""
    return figures.inferences / figures.seconds if figures.seconds else 0.0


def result_of(windows: Sequence[Figures]) -> Figures:
    """The last three windows as one; of fewer, all."""
    return joined(windows[-ALIKE:])
