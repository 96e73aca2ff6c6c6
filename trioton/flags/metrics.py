"""Flags of metrics: how they are served, and which groups and quantiles are shown. Part of `trioton.settings`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from actors.metrics.latencies import HistogramDetail
from trioton.flags.fields import BOOLEAN, INTEGER, STRING, boolean, flag, integer, port, repeatable

METRICS = "Metrics"
# By group, whether it is shown where nothing is said of it. Triton's defaults, but for the histograms, which are on.
GROUPS = {"counter_latencies": True, "histogram_latencies": True, "summary_latencies": False}
DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)

_QUANTILES = "summary_quantiles"
_HISTOGRAMS = "histogram_latencies"
# What the C library reads as the beginning of a number.
_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class MetricSetting:
    """One `--metrics-config`: whether a group is shown, or (`summary_quantiles`) which quantiles summaries have, and
    what of the text is none."""

    name: str
    is_shown: bool = True
    quantiles: tuple[float, ...] = ()
    skipped: tuple[str, ...] = ()


def metric_setting(text: str) -> MetricSetting:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError("--metrics-config option format is <setting>=<value>")
    if name == _QUANTILES:
        return _quantiles(value)
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
    return next((given.quantiles for given in reversed(settings) if given.quantiles), DEFAULT_QUANTILES)


def skipped_quantiles(settings: Sequence[MetricSetting]) -> list[str]:
    """What of `summary_quantiles` is not followed, as sentences for the log."""
    return [
        f"--metrics-config summary_quantiles: '{pair}' is skipped; expected <quantile>:<error> with a quantile from 0 "
        "to 1"
        for given in settings
        for pair in given.skipped
    ]


def _quantiles(text: str) -> MetricSetting:
    """`quantile:error,…`, read as Triton does: a pair that is none is skipped, and what follows a number in it is
    ignored. Ours are exact over what they cover, so that they keep any error that is allowed."""
    if not text:
        raise ValueError("--metrics-config option format is <setting>=<value>")
    pairs = {pair: _quantile(pair) for pair in text.split(",")}
    return MetricSetting(
        _QUANTILES,
        quantiles=tuple(dict.fromkeys(quantile for quantile in pairs.values() if quantile is not None)),
        skipped=tuple(pair for pair, quantile in pairs.items() if quantile is None),
    )


def _quantile(pair: str) -> float | None:
    quantile, _, error = pair.partition(":")
    numbers = _NUMBER.match(quantile), _NUMBER.match(error)
    if numbers[0] is None or numbers[1] is None:
        return None
    value = float(numbers[0][0])
    return value if 0.0 <= value <= 1.0 else None


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class MetricsFlags:
    """The part of the settings that is about metrics."""

    allow_metrics: bool = flag(True, boolean, group=METRICS, metavar=BOOLEAN, help="Serve metrics.")
    metrics_address: str = flag(
        "", str, group=METRICS, metavar=STRING, help="The address to listen on; where absent, that of HTTP."
    )
    metrics_port: int = flag(8002, port, group=METRICS, metavar=INTEGER, help="The port to listen on.")
    metrics_on_http_port: bool = flag(
        True, boolean, group=METRICS, metavar=BOOLEAN, help="Serve metrics on the port of HTTP, too."
    )
    metrics_use_ssl: bool = flag(
        False,
        boolean,
        group=METRICS,
        metavar=BOOLEAN,
        help="Serve metrics over HTTPS, with the certificates of HTTP; needs --http-use-ssl=true.",
    )
    metrics_interval_ms: int = flag(
        2000, integer(0), group=METRICS, metavar=INTEGER, help="How old the readings of the machine's load may be."
    )
    allow_cpu_metrics: bool = flag(
        True,
        boolean,
        group=METRICS,
        metavar=BOOLEAN,
        help="Show how busy the processors are, and the machine's memory.",
    )
    allow_gpu_metrics: bool = flag(
        True, boolean, group=METRICS, metavar=BOOLEAN, help="Show the same of NVIDIA's GPUs, where there are any."
    )

    metrics_export_url: str = flag(
        "",
        str,
        group=METRICS,
        metavar=STRING,
        help="Send the metrics to an OpenTelemetry collector, as by http://localhost:4318/v1/metrics; needs the extra "
        "'trace'.",
    )
    metrics_export_interval_ms: int = flag(
        15000, integer(1), group=METRICS, metavar=INTEGER, help="How often they are sent."
    )
    debug_loop_lag_ms: int = flag(
        0,
        integer(0),
        group=METRICS,
        metavar=INTEGER,
        help="Log what holds up the event loop for longer than this, with the task and where its code is; 0: do not "
        "look. For debugging: it costs two calls for each step of a task, and a thread.",
    )
    gen_ai_telemetry: bool = flag(
        False,
        boolean,
        group=METRICS,
        metavar=BOOLEAN,
        help="Observe calls of language models in OpenTelemetry's terms: metrics gen_ai_server_*, and attributes "
        "gen_ai.* of exported traces. Prompts and answers are in neither.",
    )
    metrics_config: tuple[MetricSetting, ...] = repeatable(
        metric_setting,
        group=METRICS,
        metavar="<setting>=<value>",
        help="counter_latencies (on), histogram_latencies (where absent: of a model's requests one with few buckets; "
        "true: six with many, and batch sizes) and summary_latencies (off): whether these groups of metrics are shown. "
        "summary_quantiles=<quantile>:<error>,… : those of the summaries, 0.5, 0.9, 0.95, 0.99 and 0.999 where absent. "
        "May be given several times.",
    )

    def histogram_detail(self) -> HistogramDetail:
        """All histograms of models where they are asked for, none where they are switched off."""
        if not any(given.name == _HISTOGRAMS for given in self.metrics_config):
            return HistogramDetail.FEW
        return HistogramDetail.ALL if self.shows_metrics(_HISTOGRAMS) else HistogramDetail.NONE

    def shows_metrics(self, group: str) -> bool:
        """Whether a group of metrics is shown."""
        return shows_metrics(self.metrics_config, group)

    def summary_quantiles(self) -> tuple[float, ...]:
        """The quantiles of the latency summaries; none where there are no summaries."""
        return summary_quantiles(self.metrics_config)
