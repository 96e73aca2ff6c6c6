"""The text of metrics, as tests look at it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sliced import finished
from trioton.metrics.exposition import Exposition
from trioton.metrics.families import Series
from trioton.metrics.metrics import Metrics


def text_of(metrics: Metrics | Exposition, *, is_openmetrics: bool = False) -> str:
    return b"".join(finished(metrics.render(is_openmetrics))).decode()


def text_of_series(series: Iterator[Series]) -> str:
    return text_of(Exposition([lambda: series]))
