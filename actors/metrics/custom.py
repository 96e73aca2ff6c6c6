"""Custom metrics: metric families that models create (`backends.services.CustomMetrics`), in one registry per server.

Written by the backends, read by the exposition. Plain state: models and instances that name the same family share it,
and the same labels share one value; a value is removed with its last holder.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TypeAlias

from backends.services import MetricKind
from protocol.errors import AlreadyExists, InvalidArgument, Unsupported

# Source: Prometheus, "Data model".
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
# The endings of a histogram's samples.
_SAMPLE_ENDINGS = ("_bucket", "_sum", "_count")

Labels: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One value as it is shown. Of a histogram `value` is the sum, `bounds` are the upper bounds without the infinite
    one, and `cumulative` are the counts up to each bound and of all."""

    labels: Mapping[str, str]
    value: float
    bounds: Sequence[float] = ()
    cumulative: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class FamilyValues:
    name: str
    description: str
    kind: MetricKind
    values: Iterable[MetricValue]


@dataclass(eq=False, slots=True)
class _Series:
    """One value. `counts` are those of a histogram's buckets, the last one without a bound."""

    labels: Labels
    bounds: tuple[float, ...]
    value: float = 0.0
    counts: list[int] = field(default_factory=list)
    holders: int = 0

    def frozen(self) -> MetricValue:
        return MetricValue(dict(self.labels), self.value, self.bounds, list(accumulate(self.counts)))


@dataclass(eq=False, slots=True)
class _Family:
    name: str
    description: str
    kind: MetricKind
    holders: int = 0
    series: dict[Labels, _Series] = field(default_factory=dict)


class CustomMetrics:
    """The metric families of one server. `reserved` tells whether the server has a metric of its own of a name; without
    `is_enabled` there are no metrics at all, without `has_histograms` none of the server's own backends'."""

    def __init__(
        self,
        reserved: Callable[[str], bool] = lambda name: False,
        *,
        is_enabled: bool = True,
        has_histograms: bool = True,
    ) -> None:
        self._reserved = reserved
        self._is_enabled = is_enabled
        self._has_histograms = has_histograms
        self._families: dict[str, _Family] = {}

    def family(self, name: str, description: str, kind: MetricKind, *, is_own: bool = False) -> FamilyHandle:
        """The family of this name, created if there is none; the first description stays.

        Raises:
            Unsupported: metrics are off, or these. InvalidArgument: an invalid name. AlreadyExists: another kind has
            the name.
        """
        if not self._is_enabled:
            raise Unsupported("metrics are not enabled at this server")
        if is_own and kind == "histogram" and not self._has_histograms:
            raise Unsupported("histograms are not enabled at this server")
        if not _NAME.fullmatch(name):
            raise InvalidArgument(f"'{name}' is no name for a metric: letters, digits, '_' and ':', no digit first")
        family = self._families.get(name)
        if family is None:
            self._refuse_taken(name, kind, is_own=is_own)
            family = self._families[name] = _Family(name, description, kind)
        elif family.kind != kind:
            raise AlreadyExists(f"metric family '{name}' exists already, as a {family.kind} and not as a {kind}")
        family.holders += 1
        return FamilyHandle(family, self._families, is_own=is_own)

    def find(self, name: str) -> list[MetricValue]:
        """The current values of one family; none where there is no such."""
        family = self._families.get(name)
        return [] if family is None else [series.frozen() for series in family.series.values()]

    def values(self) -> Iterator[FamilyValues]:
        """All current values, one by one; what changes meanwhile may be shown as it was or as it is."""
        for _, family in sorted(self._families.items()):
            shown = (series.frozen() for series in list(family.series.values()))
            yield FamilyValues(family.name, family.description, family.kind, shown)

    def _refuse_taken(self, name: str, kind: MetricKind, *, is_own: bool) -> None:
        """The samples of two families must not have the same name."""
        for taken in _sample_names(name, kind):
            if not is_own and self._reserved(taken):
                raise AlreadyExists(f"'{taken}' is a metric of the server's own")
            for other in self._families.values():
                if taken in _sample_names(other.name, other.kind):
                    raise AlreadyExists(f"'{taken}' belongs to the metric family '{other.name}' already")


def _sample_names(name: str, kind: MetricKind) -> tuple[str, ...]:
    return (name, *(name + ending for ending in _SAMPLE_ENDINGS)) if kind == "histogram" else (name,)


class FamilyHandle:
    """Implements `backends.services.CustomMetricFamily`."""

    __slots__ = ("_families", "_family", "_is_closed", "_is_own")

    def __init__(self, family: _Family, families: dict[str, _Family], *, is_own: bool) -> None:
        self._family = family
        self._families = families
        self._is_own = is_own
        self._is_closed = False

    def metric(self, labels: Mapping[str, str], buckets: Sequence[float]) -> MetricHandle:
        """Raises InvalidArgument: an invalid label name, or bounds that are invalid or differ from those before. Of the
        server's own, a metric with other bounds takes the place of the one before: its model was loaded anew."""
        for label in labels:
            if not _LABEL.fullmatch(label) or (label == "le" and self._family.kind == "histogram"):
                raise InvalidArgument(f"'{label}' is no name for a label of the metric '{self._family.name}'")
        bounds = tuple(buckets)
        if any(map(math.isnan, bounds)) or any(low >= high for low, high in pairwise(bounds)):
            raise InvalidArgument(f"the buckets of the metric '{self._family.name}' must ascend, got {list(bounds)}")
        if bounds and bounds[-1] == math.inf:
            bounds = bounds[:-1]  # it is there in any case
        key = tuple(sorted(labels.items()))
        series = self._family.series.get(key)
        if series is None or (self._is_own and series.bounds != bounds):
            counts = [0] * (len(bounds) + 1) if self._family.kind == "histogram" else []
            series = self._family.series[key] = _Series(key, bounds, counts=counts)
        elif series.bounds != bounds:
            raise InvalidArgument(
                f"the metric '{self._family.name}' has the buckets {list(series.bounds)} already, got {list(bounds)}"
            )
        series.holders += 1
        return MetricHandle(series, self._family.series)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._family.holders -= 1
            if not self._family.holders:
                del self._families[self._family.name]


class MetricHandle:
    """Implements `backends.services.CustomMetric`."""

    __slots__ = ("_all", "_is_closed", "_series")

    def __init__(self, series: _Series, all_series: dict[Labels, _Series]) -> None:
        self._series = series
        self._all = all_series
        self._is_closed = False

    def increment(self, value: float) -> None:
        self._series.value += value

    def set(self, value: float) -> None:
        self._series.value = value

    def observe(self, value: float, count: int = 1) -> None:
        series = self._series
        series.value += value * count
        series.counts[bisect_left(series.bounds, value)] += count

    def value(self) -> float:
        return self._series.value

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._series.holders -= 1
            if not self._series.holders and self._all.get(self._series.labels) is self._series:
                del self._all[self._series.labels]
