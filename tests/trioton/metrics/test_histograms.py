"""Histograms and refusals in the metrics text, read back by Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from actors.metrics.histogram import Histogram
from actors.metrics.statistics import VersionSnapshot
from protocol.core import ModelStatistics
from protocol.limits.counter import LimitCounter
from tests.trioton.metrics.texts import text_of
from trioton.metrics.metrics import Metrics


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text_of(metrics))
        for sample in family.samples
    }


def labels(**given: str) -> frozenset[tuple[str, str]]:
    return frozenset(given.items())


def test_a_histogram_has_its_buckets_sum_and_count() -> None:
    histogram = Histogram((100.0, 1000.0))
    histogram.observe(50.0, 2)
    histogram.observe(2000.0)
    snapshot = VersionSnapshot("m", 1, {}, ModelStatistics("m", "1"), 0, 0.5, {}, {"queue": histogram.frozen()})
    found = samples(Metrics(lambda: [snapshot], interval=1.0))
    name = "nv_inference_queue_duration_histogram_us"
    assert [found[f"{name}_bucket", labels(model="m", version="1", le=le)] for le in ("100.0", "1000.0", "+Inf")] == [
        2,
        2,
        3,
    ]
    assert found[f"{name}_sum", labels(model="m", version="1")] == 2100
    assert found[f"{name}_count", labels(model="m", version="1")] == 3
    assert not any(key[0].startswith("nv_inference_request_duration_histogram") for key in found)


def test_counters_can_be_switched_off() -> None:
    snapshot = VersionSnapshot("m", 1, {}, ModelStatistics("m", "1"), 3, 0.5, {})
    names = {name for name, _ in samples(Metrics(lambda: [snapshot], interval=1.0, has_counters=False))}
    assert "nv_inference_pending_request_count" in names
    assert not names & {"nv_inference_count", "nv_inference_request_failure"}


def test_a_limit_that_bites_is_counted() -> None:
    limits = LimitCounter()
    limits.count("http", "max_body_size")
    limits.count("http", "max_body_size")
    found = samples(Metrics(list, interval=1.0, limits=limits))
    assert found["trioton_limit_refusals_total", labels(protocol="http", limit="max_body_size")] == 2
