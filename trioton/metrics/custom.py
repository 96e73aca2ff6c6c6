"""The custom metrics that models, and the engines of language models, define."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from actors.metrics.custom import FamilyValues, MetricValue
from trioton.metrics.families import Family, Sample, Series, histogram_samples

# Those of the TensorRT-LLM backend are its own, not the server's.
_OF_MODELS = "nv_trt_llm_"


def custom_series(families: Callable[[], Iterable[FamilyValues]]) -> Iterator[Series]:
    """What the models count for themselves, under the names that they have given."""
    for each in families():
        family = Family(each.name, each.kind, each.description)
        yield Series(family, (), ())
        for value in each.values:
            yield Series(family, tuple(value.labels.items()), _samples(each.kind, value))


def _samples(kind: str, value: MetricValue) -> Sequence[Sample]:
    if kind == "histogram":
        return histogram_samples(value.bounds, value.cumulative, value.value)
    return (Sample(value.value),)


def is_own_name(name: str) -> bool:
    """Whether a metric of this name is, or may one day be, one of the server's."""
    return name.startswith(("nv_", "trioton_")) and not name.startswith(_OF_MODELS)
