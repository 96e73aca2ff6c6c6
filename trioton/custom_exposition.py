"""Prometheus text of the custom metrics that models define.

Flow: custom metrics → [exposition] → `trioton.metrics`. A language model has hundreds of samples, most of them buckets,
so what stands before their values is kept from one scrape to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from actors.metrics.custom import FamilyValues, MetricValue
from trioton.exposition import family_head, number, sample_start

# The name of a family, its labels in order, and the bounds of a histogram.
_Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...], tuple[float, ...]]


class CustomExposition:
    """What the models count for themselves, under the names that they have given."""

    def __init__(self, families: Callable[[], Iterable[FamilyValues]]) -> None:
        self._families = families
        # Of the values that were there at the last scrape.
        self._starts: dict[_Key, Sequence[str]] = {}

    def render(self) -> str:
        starts: dict[_Key, Sequence[str]] = {}
        lines = [line for family in self._families() for line in self._family(family, starts)]
        self._starts = starts
        return "".join(lines)

    def _family(self, family: FamilyValues, starts: dict[_Key, Sequence[str]]) -> Iterator[str]:
        yield family_head(family.name, family.description, family.kind)
        is_histogram = family.kind == "histogram"
        for value in family.values:
            key = (family.name, tuple(value.labels.items()), tuple(value.bounds))
            start = self._starts.get(key) or (_histogram_starts if is_histogram else _starts)(family.name, value)
            starts[key] = start
            shown = (*value.cumulative, value.value, value.cumulative[-1]) if is_histogram else (value.value,)
            for text, each in zip(start, shown, strict=True):
                yield f"{text}{number(each)}\n"


def _starts(name: str, value: MetricValue) -> Sequence[str]:
    return (sample_start(name, value.labels),)


def _histogram_starts(name: str, value: MetricValue) -> Sequence[str]:
    buckets = [
        sample_start(f"{name}_bucket", {**value.labels, "le": bound}) for bound in (*map(repr, value.bounds), "+Inf")
    ]
    return (*buckets, sample_start(f"{name}_sum", value.labels), sample_start(f"{name}_count", value.labels))


# Those of the TensorRT-LLM backend are its own, not the server's.
_OF_MODELS = "nv_trt_llm_"


def is_own_name(name: str) -> bool:
    """Whether a metric of this name is, or may one day be, one of the server's."""
    return name.startswith(("nv_", "trioton_")) and not name.startswith(_OF_MODELS)
