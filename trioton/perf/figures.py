"""Figures of a span of time: what one or several senders have seen in it. They add without loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from trioton.perf.histogram import Histogram

NANOSECONDS = 1_000_000_000
# Texts of errors that are told apart; more are counted together.
_MOST_ERRORS = 16
OTHER_ERRORS = "other errors"


@dataclass(slots=True, kw_only=True)
class Figures:
    """A request belongs to the span in which it ends. Durations in histograms are in nanoseconds.

    Attributes:
        seconds: the length of the span.
        sent: requests that were sent in it.
        succeeded: that ended with an answer; these alone are in the histograms, but for `lateness`.
        cancelled: that the client has given up, as it was told to.
        good: that kept all bounds which were asked for.
        inferences: of those that succeeded: their batch sizes together.
        responses: of those that succeeded.
        tokens: of those that succeeded.
        errors: how often each has come.
        latency: from the planned moment to the last response.
        service: from sending to the last response.
        first: from the planned moment to the first response, where there can be several.
        gaps: from one response to the next, where there can be several.
        lateness: from the planned moment to sending, of all that were sent.
        in_flight_seconds: the time that requests were in flight, from their planned moments on, added up.
        processor_seconds: of the sender.
    """

    seconds: float = 0.0
    sent: int = 0
    succeeded: int = 0
    cancelled: int = 0
    good: int = 0
    inferences: int = 0
    responses: int = 0
    tokens: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)
    service: Histogram = field(default_factory=Histogram)
    first: Histogram = field(default_factory=Histogram)
    gaps: Histogram = field(default_factory=Histogram)
    lateness: Histogram = field(default_factory=Histogram)
    in_flight_seconds: float = 0.0
    processor_seconds: float = 0.0

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    @property
    def rate(self) -> float:
        """Requests that succeeded, a second."""
        return self.succeeded / self.seconds if self.seconds else 0.0

    @property
    def in_flight(self) -> float:
        """The mean number of requests in flight. By Little's law it is the rate of all that end times their mean
        latency."""
        return self.in_flight_seconds / self.seconds if self.seconds else 0.0

    @property
    def processor_share(self) -> float:
        """How much of one core the sender has taken."""
        return self.processor_seconds / self.seconds if self.seconds else 0.0

    def count_error(self, text: str, count: int = 1) -> None:
        """Of all texts the first few are told apart."""
        if text not in self.errors and len(self.errors) >= _MOST_ERRORS:
            text = OTHER_ERRORS
        self.errors[text] = self.errors.get(text, 0) + count

    def add(self, other: Figures) -> None:
        """Count in what another sender has seen meanwhile: all but the length of the span, which is the longer one."""
        self._add_counts(other)
        self.seconds = max(self.seconds, other.seconds)

    def follow(self, other: Figures) -> None:
        """Count in the span that follows this one."""
        self._add_counts(other)
        self.seconds += other.seconds

    def to_json(self) -> dict[str, Any]:
        """As builtins, from which `from_json` makes equal ones."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value.to_json() if isinstance(value, Histogram) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Figures:
        """Raises KeyError, TypeError, ValueError where it is none."""
        values: dict[str, Any] = {each.name: value[each.name] for each in fields(cls)}
        return cls(**{**values, **{name: Histogram.from_json(values[name]) for name in _HISTOGRAMS}})

    def _add_counts(self, other: Figures) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _HISTOGRAMS:
            getattr(self, name).merge(getattr(other, name))
        for text, count in other.errors.items():
            self.count_error(text, count)


_HISTOGRAMS = ("latency", "service", "first", "gaps", "lateness")
_SUMS = (
    "sent",
    "succeeded",
    "cancelled",
    "good",
    "inferences",
    "responses",
    "tokens",
    "in_flight_seconds",
    "processor_seconds",
)


def joined(spans: Iterable[Figures]) -> Figures:
    """Spans that follow each other, as one."""
    whole = Figures()
    for span in spans:
        whole.follow(span)
    return whole
