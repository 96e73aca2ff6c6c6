"""Recorder: counts the results of one sender, and cuts them into spans."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import trio

from trioton.perf.caller import Result
from trioton.perf.figures import NANOSECONDS, Figures
from trioton.perf.load import Goodput


class Recorder:
    """What results amount to since the last `cut`. `processor` is the processor time of the sender, in seconds.

    Attributes:
        observe: called with each result that counts; None while nobody wants to.
        is_full: set when as many results have been counted as `limit_to` says; later ones are not.
    """

    def __init__(self, now: Callable[[], int], processor: Callable[[], float], goodput: Goodput | None = None) -> None:
        self.observe: Callable[[Result], None] | None = None
        self.is_full = trio.Event()
        self._now, self._processor = now, processor
        self._goodput = goodput
        self._since, self._processor_since = now(), processor()
        self._left = math.inf
        # The time in flight is the number of those begun times now less their moments, less the same of those ended.
        self._begun = self._ended = 0
        self._moments = 0
        self._area_since = 0
        self._figures = Figures()
        self._latency: list[int] = []
        self._service: list[int] = []
        self._first: list[int] = []
        self._gaps: list[int] = []
        self._lateness: list[int] = []

    def limit_to(self, count: int) -> None:
        """Count so many results from now on, and no more."""
        self._left = count

    def begin(self, planned: int) -> None:
        """A request is to be sent at this moment, which has come."""
        self._begun += 1
        self._moments -= planned

    def forget(self, planned: int) -> None:
        """A request that was begun will never be sent."""
        self._begun -= 1
        self._moments += planned

    def take(self, result: Result) -> None:
        """A request has ended."""
        self._ended += 1
        self._moments += result.last
        if self._left <= 0:
            return
        self._left -= 1
        figures = self._figures
        figures.sent += 1
        self._lateness.append(result.sent - result.planned)
        if result.error:
            figures.count_error(result.error)
        elif result.is_cancelled:
            figures.cancelled += 1
        else:
            figures.succeeded += 1
            figures.inferences += result.call.inferences
            self._latency.append(result.last - result.planned)
            self._service.append(result.last - result.sent)
            if result.times:
                self._take_responses(result)
            else:
                figures.responses += 1
            if self._goodput is not None and is_good(result, self._goodput):
                figures.good += 1
        if self.observe is not None:
            self.observe(result)
        if self._left <= 0:
            self.is_full.set()

    def cut(self) -> Figures:
        """The figures since the last cut, or since it was made."""
        now, processor = self._now(), self._processor()
        figures, self._figures = self._figures, Figures()
        for histogram, values in (
            (figures.latency, self._latency),
            (figures.service, self._service),
            (figures.first, self._first),
            (figures.gaps, self._gaps),
            (figures.lateness, self._lateness),
        ):
            histogram.record_all(values)
            values.clear()
        area = (self._begun - self._ended) * now + self._moments
        figures.in_flight_seconds = (area - self._area_since) / NANOSECONDS
        figures.seconds = (now - self._since) / NANOSECONDS
        figures.processor_seconds = processor - self._processor_since
        self._area_since, self._since, self._processor_since = area, now, processor
        return figures

    def _take_responses(self, result: Result) -> None:
        times = result.times
        self._figures.responses += len(times)
        self._figures.tokens += result.tokens
        self._first.append(result.first - result.planned)
        self._gaps += [later - earlier for earlier, later in itertools.pairwise(times)]


def is_good(result: Result, goodput: Goodput) -> bool:
    """Whether a request that has succeeded keeps all bounds."""
    if goodput.latency is not None and result.last - result.planned > goodput.latency * NANOSECONDS:
        return False
    if goodput.first is not None and result.first - result.planned > goodput.first * NANOSECONDS:
        return False
    count = len(result.times) - 1
    if goodput.gap is None or count < 1:
        return True
    return (result.times[-1] - result.times[0]) / count <= goodput.gap * NANOSECONDS
