"""Bounds on what is measured: `p99:20ms`, `rate:500`, `ttft.p95:300ms`. Parsing and judging, pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s)")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?|100)")
# What latencies are of, by the word before the percentile.
SUBJECTS = {"": "latency", "ttft": "first", "itl": "gaps", "service": "service"}


@dataclass(frozen=True, slots=True)
class LatencyBound:
    """A percentile, or the mean where `percent` is None, is at most so many seconds.

    Attributes:
        subject: "latency", "service", "first" (time to the first response) or "gaps" (between responses).
    """

    percent: float | None
    seconds: float
    subject: str = "latency"

    def __str__(self) -> str:
        word = next(word for word, subject in SUBJECTS.items() if subject == self.subject)
        name = "mean" if self.percent is None else f"p{self.percent:g}"
        return f"{f'{word}.' if word else ''}{name}:{duration_text(self.seconds)}"


@dataclass(frozen=True, slots=True)
class RateBound:
    """At least so many requests succeed a second."""

    rate: float

    def __str__(self) -> str:
        return f"rate:{self.rate:g}"


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """At most such a share of requests fails."""

    share: float

    def __str__(self) -> str:
        return f"errors:{self.share:g}"


Bound = LatencyBound | RateBound | ErrorBound


def duration(text: str) -> float:
    """Seconds. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("expected a duration such as 20ms, 500us or 1.5s")
    return float(found[1]) * _UNITS[found[2]]


def duration_text(seconds: float) -> str:
    """In the largest unit in which it is at least 1."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.6g}{unit}"
    return f"{seconds * 1e9:.6g}ns"


def latency_bound(text: str) -> LatencyBound:
    """`p99:20ms`, `mean:5ms`, `ttft.p95:300ms`, `itl.p99:50ms`, `service.p50:2ms`. Raises ValueError."""
    name, colon, value = text.partition(":")
    word, dot, rest = name.partition(".")
    subject, rest = (word, rest) if dot and word in SUBJECTS else ("", name)
    percent = _PERCENTILE.fullmatch(rest)
    if not colon or (percent is None and rest != "mean"):
        raise ValueError("expected a bound on a latency such as p99:20ms, mean:5ms, ttft.p95:300ms or itl.p99:50ms")
    return LatencyBound(None if percent is None else float(percent[1]), duration(value), SUBJECTS[subject])


def bounds(text: str) -> tuple[Bound, ...]:
    """Several, separated by commas: `p99:20ms,rate:500,errors:0.01`. Raises ValueError."""
    return tuple(_bound(part.strip()) for part in text.split(","))


_KINDS = "expected bounds such as p99:20ms, mean:5ms, ttft.p95:300ms, itl.p99:50ms, rate:500 or errors:0.01"


def _bound(text: str) -> Bound:
    name, _, value = text.partition(":")
    if name not in ("rate", "errors"):
        try:
            return latency_bound(text)
        except ValueError:
            raise ValueError(_KINDS) from None
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if number < 0 or (name == "errors" and number > 1):
        raise ValueError(f"expected {name}:<number>, such as rate:500 or errors:0.01")
    return RateBound(number) if name == "rate" else ErrorBound(number)
