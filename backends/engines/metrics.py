"""Metrics of an engine: its load and what it has generated, in vLLM's names, so that dashboards for it work.

Owned by the backend. Where a server shows no metrics nothing is kept.
"""

from __future__ import annotations

from backends.engines.worker.trioton_engine.engine import Stats
from backends.interface import InstanceSpec
from backends.services import CustomMetric, CustomMetricFamily, CustomMetrics, MetricKind
from protocol.errors import ServerError

_FAMILIES: tuple[tuple[str, MetricKind, str], ...] = (
    ("vllm:num_requests_running", "gauge", "Number of requests that the engine computes"),
    ("vllm:num_requests_waiting", "gauge", "Number of requests that wait for the engine, or within it"),
    ("vllm:kv_cache_usage_perc", "gauge", "Part of the key-value cache that is in use, from 0 to 1"),
    ("vllm:num_preemptions_total", "counter", "Number of times that a request had to give up its cache"),
    ("vllm:prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the cache"),
    ("vllm:prefix_cache_hits_total", "counter", "Prompt tokens that were found in the cache"),
    ("vllm:prompt_tokens_total", "counter", "Prompt tokens of requests that were begun"),
    ("vllm:generation_tokens_total", "counter", "Generated tokens"),
)


class EngineMetrics:
    """One engine's."""

    def __init__(self, spec: InstanceSpec, metrics: CustomMetrics | None) -> None:
        self._families: list[CustomMetricFamily] = []
        self._metrics: list[CustomMetric] = []
        self._last = Stats()
        if metrics is None:
            return
        source = spec.source
        labels = {"model_name": source.name, "engine": spec.name, "version": str(source.version)}
        try:
            for name, kind, description in _FAMILIES:
                family = metrics.family(name, description, kind)
                self._families.append(family)
                self._metrics.append(family.metric(labels, ()))
        except ServerError:  # none are shown
            self.close()

    def note(self, stats: Stats, waiting: int) -> None:
        """The engine's load, and how many requests wait for it."""
        if self._metrics:
            running_gauge, waiting_gauge, usage_gauge, *counters = self._metrics
            running_gauge.set(stats.running)
            waiting_gauge.set(stats.waiting + waiting)
            usage_gauge.set(stats.cache_usage)
            last, self._last = self._last, stats
            if stats[5:] != last[5:]:
                for counter, value, before in zip(counters, stats[5:], last[5:], strict=False):
                    counter.increment(max(value - before, 0))

    def count(self, prompt_tokens: int, generated_tokens: int) -> None:
        """Tokens of requests."""
        if self._metrics:
            self._metrics[-2].increment(prompt_tokens)
            self._metrics[-1].increment(generated_tokens)

    def close(self) -> None:
        """They vanish."""
        for metric in self._metrics:
            metric.close()
        for family in self._families:
            family.close()
        self._metrics, self._families = [], []
