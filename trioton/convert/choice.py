"""Chooses among candidates that have passed the gate, by what was measured. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from trioton.convert.tolerances import Precision

# Rates that differ by less are taken for equal, besides those whose rounds overlap.
_EQUAL = 0.05
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
PERCENTILES = ("p50", "p90", "p95", "p99")


class Bound(msgspec.Struct, frozen=True):
    """A latency that must be kept: one of `PERCENTILES`, in milliseconds."""

    percentile: str
    milliseconds: float

    def __str__(self) -> str:
        return f"{self.percentile}:{self.milliseconds:g}ms"


def given_bound(text: str) -> Bound:
    """`p99:20ms`."""
    found = re.fullmatch(rf"({'|'.join(PERCENTILES)}):(\d+(?:\.\d+)?)(us|ms|s)", text)
    if found is None or float(found[2]) <= 0:
        raise ValueError(f"expected <percentile>:<duration> with one of {', '.join(PERCENTILES)}, as in p99:20ms")
    return Bound(found[1], float(found[2]) * _UNITS[found[3]])


class Load(msgspec.Struct, frozen=True):
    """What one round has measured with so many callers in a closed loop."""

    concurrency: int
    rate: float
    latencies_ms: dict[str, float]
    count: int


class Speed(msgspec.Struct, frozen=True):
    """All that was measured of a candidate: the loads of each round."""

    rounds: tuple[tuple[Load, ...], ...]
    memory_bytes: int

    def rates(self, bound: Bound | None) -> tuple[float, ...]:
        """The best rate of each round that keeps the bound; 0 where none does."""
        return tuple(
            max((load.rate for load in loads if bound is None or keeps(load, bound)), default=0.0)
            for loads in self.rounds
        )


def keeps(load: Load, bound: Bound) -> bool:
    return load.latencies_ms[bound.percentile] <= bound.milliseconds


class Contender(msgspec.Struct, frozen=True):
    """A candidate in the choice; those before it are preferred where nothing else tells."""

    name: str
    precision: Precision
    is_portable: bool
    speed: Speed | None


def choose(contenders: Sequence[Contender], bound: Bound | None) -> Contender | None:
    """The one with the highest rate under the bound; among equals the one of the highest precision, then one that runs
    on any processor, then the first. Without measurements the equals are all. None where no one keeps the bound."""
    measured = [(each, each.speed.rates(bound)) for each in contenders if each.speed is not None]
    if not measured:
        return min(contenders, key=_trust, default=None)
    kept = [(each, rates) for each, rates in measured if min(rates) > 0]
    if not kept:
        return None
    _, best = max(kept, key=lambda pair: sum(pair[1]))
    equals = [each for each, rates in kept if max(rates) >= min(best) or max(rates) >= (1 - _EQUAL) * max(best)]
    return min(equals, key=_trust)


def _trust(contender: Contender) -> tuple[int, bool]:
    return contender.precision.rank, not contender.is_portable
