"""Exemplars: traced requests that stand for the buckets of a histogram, so that a slow bucket leads to a trace.

Flow: tracer → [exemplars] → metrics. Filled when a traced request ends. Of each model version there are the latest of
each power of two microseconds, and no more than `MOST_VERSIONS` versions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

MOST_VERSIONS = 4096


class Exemplar(NamedTuple):
    """`value` is in the unit of the histogram, `seconds` since the epoch."""

    trace_id: str
    span_id: str
    value: float
    seconds: float


class Exemplars:
    """Those of one server, of the durations of requests in microseconds. Versions that were not traced for longest are
    forgotten first."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, int], dict[int, Exemplar]] = OrderedDict()

    def note(self, model: str, version: int, exemplar: Exemplar) -> None:
        of_version = self._found.setdefault((model, version), {})
        self._found.move_to_end((model, version))
        of_version[int(exemplar.value).bit_length()] = exemplar
        if len(self._found) > MOST_VERSIONS:
            self._found.popitem(last=False)

    def of(self, model: str, version: int, bounds: Sequence[float]) -> Sequence[Exemplar | None]:
        """The latest in each bucket, the one without a bound included; empty where there is none at all."""
        of_version = self._found.get((model, version))
        if of_version is None:
            return ()
        chosen: list[Exemplar | None] = [None] * (len(bounds) + 1)
        for exemplar in of_version.values():
            bucket = bisect_left(bounds, exemplar.value)
            other = chosen[bucket]
            if other is None or other.seconds < exemplar.seconds:
                chosen[bucket] = exemplar
        return chosen
