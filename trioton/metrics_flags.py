"""`--metrics-config`: which groups of metrics there are, and the quantiles of the summaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trioton.flags import boolean

# By group, whether it is shown where nothing is said of it. Triton's defaults, but for the histograms, which are on.
GROUPS = {"counter_latencies": True, "histogram_latencies": True, "summary_latencies": False}
DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)

_QUANTILES = "summary_quantiles"


@dataclass(frozen=True, slots=True)
class MetricSetting:
    """One `--metrics-config`: whether a group is shown, or (`summary_quantiles`) which quantiles summaries have."""

    name: str
    is_shown: bool = True
    quantiles: tuple[float, ...] = ()


def metric_setting(text: str) -> MetricSetting:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError("--metrics-config option format is <setting>=<value>")
    if name == _QUANTILES:
        return MetricSetting(name, quantiles=_quantiles(value))
    if name not in GROUPS:
        raise ValueError(f"unknown setting of --metrics-config; expected {', '.join(GROUPS)} or {_QUANTILES}")
    return MetricSetting(name, boolean(value))


def shows_metrics(settings: Sequence[MetricSetting], group: str) -> bool:
    """Whether a group of metrics is shown: as the last setting of it says."""
    return next((given.is_shown for given in reversed(settings) if given.name == group), GROUPS[group])


def summary_quantiles(settings: Sequence[MetricSetting]) -> tuple[float, ...]:
    """The quantiles of the summaries; none where there are no summaries."""
    if not shows_metrics(settings, "summary_latencies"):
        return ()
    return next((given.quantiles for given in reversed(settings) if given.name == _QUANTILES), DEFAULT_QUANTILES)


def _quantiles(text: str) -> tuple[float, ...]:
    """`quantile:error,…`. Ours are exact over what they cover, so that they keep any error that is allowed."""
    return tuple(_pair(pair) for pair in text.split(","))


def _pair(text: str) -> float:
    quantile, colon, error = text.partition(":")
    try:
        numbers = float(quantile), float(error)
    except ValueError:
        numbers = (math.nan, math.nan)
    if not colon or not all(0.0 <= number <= 1.0 for number in numbers):
        raise ValueError(
            f"--metrics-config summary_quantiles expects <quantile>:<error>,… with numbers from 0 to 1, got '{text}'"
        )
    return numbers[0]
