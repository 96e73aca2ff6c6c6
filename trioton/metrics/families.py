"""Metric families, and series of samples: what sources of metrics give, in no format yet.

A source is called at each scrape, and gives its series one by one, so that others run in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from actors.metrics.exemplars import Exemplar

Labels: TypeAlias = tuple[tuple[str, str], ...]


class Family(NamedTuple):
    """`kind` is "counter", "gauge", "histogram", "summary" or "unknown"."""

    name: str
    kind: str
    help: str


class Sample(NamedTuple):
    """`suffix` follows the family's name, `labels` those of the series."""

    value: float
    suffix: str = ""
    labels: Labels = ()
    exemplar: Exemplar | None = None


class Series(NamedTuple):
    """Samples of one family that share labels. Without any the family is shown all the same."""

    family: Family
    labels: Labels
    samples: Sequence[Sample]


Source: TypeAlias = Callable[[], Iterator[Series]]


def gauge(name: str, text: str, value: float, labels: Labels = ()) -> Series:
    return Series(Family(name, "gauge", text), labels, (Sample(value),))


def histogram_samples(
    bounds: Sequence[float], cumulative: Sequence[int], total: float, exemplars: Sequence[Exemplar | None] = ()
) -> list[Sample]:
    """`cumulative` counts up to each bound, and all of them at last; `exemplars` are of each bucket, if there are
    any."""
    found = exemplars or (None,) * len(cumulative)
    samples = [
        Sample(count, "_bucket", (("le", le),), exemplar)
        for le, count, exemplar in zip((*map(repr, bounds), "+Inf"), cumulative, found, strict=True)
    ]
    samples.append(Sample(total, "_sum"))
    samples.append(Sample(cumulative[-1], "_count"))
    return samples
