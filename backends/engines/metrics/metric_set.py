"""Metric set: the metrics of one engine, with the labels that they have in common, opened and closed together.

Where the server shows no metrics, or none of a kind, what is counted goes nowhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from backends.engine_families import Family, bounds_of
from backends.services import CustomMetric, CustomMetricFamily, CustomMetrics
from protocol.errors import ServerError, Unsupported

logger = logging.getLogger("trioton.backends.engines")


class _Unseen:
    """A metric that is not shown. Implements `backends.services.CustomMetric`."""

    def increment(self, value: float) -> None:
        pass

    def set(self, value: float) -> None:
        pass

    def observe(self, value: float, count: int = 1) -> None:
        pass

    def value(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


UNSEEN: CustomMetric = _Unseen()


class MetricSet:
    """`labels` are those of every metric; `context_length` is 0 where it is unknown."""

    def __init__(self, metrics: CustomMetrics | None, labels: Mapping[str, str], context_length: int = 0) -> None:
        self._metrics = metrics
        self._labels = labels
        self._context_length = context_length
        self._families: dict[str, CustomMetricFamily] = {}
        self._held: set[CustomMetric] = set()

    def metric(self, family: Family, **labels: str) -> CustomMetric:
        """One that is shown from now on, until it is dropped, or all are closed."""
        found = self._family(family)
        if found is None:
            return UNSEEN
        metric = found.metric({**self._labels, **labels}, bounds_of(family, self._context_length))
        self._held.add(metric)
        return metric

    def _family(self, family: Family) -> CustomMetricFamily | None:
        if family.name not in self._families and self._metrics is not None:
            try:
                self._families[family.name] = self._metrics.family(
                    family.name, family.description, family.kind, is_own=True
                )
            except Unsupported:
                return None
            except ServerError as error:  # a model has made one of that name, of another kind
                logger.warning("model '%s' shows no %s: %s", self._labels["model_name"], family.name, error)
                return None
        return self._families.get(family.name)

    def drop(self, metric: CustomMetric) -> None:
        """Show one no more."""
        self._held.discard(metric)
        metric.close()

    def close(self) -> None:
        """Show none of them any more."""
        for metric in self._held:
            metric.close()
        for family in self._families.values():
            family.close()
        self._families, self._held = {}, set()
