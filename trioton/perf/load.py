"""Loads: how requests are offered to a model. Closed: so many at a time. Open: so many a second, come what may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from trioton.perf.arrivals import Arrivals, Poisson


@dataclass(frozen=True, slots=True)
class Closed:
    """`concurrency` callers, each of which sends its next request when the last one has ended."""

    concurrency: int

    def __str__(self) -> str:
        return f"{self.concurrency} at a time"


@dataclass(frozen=True, slots=True)
class Open:
    """Requests at moments that are planned beforehand, from which their latency counts.

    Attributes:
        rate: requests a second; 0 for listed arrivals as they are.
        arrivals: their kind.
        seed: what random arrivals are made from.
        most_in_flight: beyond so many a request waits for another to end; its latency counts all the same.
    """

    rate: float
    arrivals: Arrivals = Poisson()  # noqa: RUF009 (frozen)
    seed: int = 0
    most_in_flight: int = 4096

    def __str__(self) -> str:
        return f"{self.rate:g} a second"


Load: TypeAlias = Closed | Open


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """What a request must keep to count as good, in seconds; None for what does not matter.

    Attributes:
        first: to the first response (time to first token).
        gap: the mean time between responses.
        latency: to the last response.
    """

    first: float | None = None
    gap: float | None = None
    latency: float | None = None
