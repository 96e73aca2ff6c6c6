"""OTLP: series of metrics as a request to an OpenTelemetry collector. Needs the extra `trace`.

Names are Prometheus'. Counters and histograms are cumulative; quantiles of a summary are gauges beside its sum and
count. Source: OpenTelemetry, "Metrics Data Model".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from protocol.sync.sliced import Sliced
from trioton.metrics.families import Family, Labels, Sample, Series, Source

SCOPE = "trioton"

# Fields of the messages around the metrics, which are written by hand, so that each metric can be serialized by itself:
# `ExportMetricsServiceRequest.resource_metrics`, `ResourceMetrics.scope_metrics`, `ScopeMetrics.metrics`.
_RESOURCE_METRICS, _SCOPE_METRICS, _METRICS = 1, 2, 2


def export_request(
    sources: Iterable[Source], resource: Iterable[tuple[str, str]], *, started_ns: int, now_ns: int
) -> Sliced[bytes]:
    """A serialized `ExportMetricsServiceRequest`. Yields between two series, and between two metrics."""
    metrics: dict[str, Metric] = {}
    for source in sources:
        for series in source():
            for name, family, samples in _parts(series):
                metric = metrics.get(name)
                if metric is None:
                    metric = metrics[name] = Metric(name=name, description=family.help)
                _add(metric, family.kind, series.labels, samples, started_ns, now_ns)
            yield
    parts = [ScopeMetrics(scope=InstrumentationScope(name=SCOPE)).SerializeToString()]
    for metric in metrics.values():
        parts.append(_field(_METRICS, metric.SerializeToString()))
        yield
    scope = _field(_SCOPE_METRICS, b"".join(parts))
    of_resource = ResourceMetrics(resource=Resource(attributes=_attributes(resource))).SerializeToString()
    return _field(_RESOURCE_METRICS, of_resource + scope)


def _parts(series: Series) -> Iterable[tuple[str, Family, Sequence[Sample]]]:
    """What a series is in OTLP: itself, or of a summary its quantiles, sum and count apart."""
    family = series.family
    if not series.samples:
        return
    if family.kind != "summary":
        yield family.name, family, series.samples
        return
    yield family.name, family._replace(kind="gauge"), [each for each in series.samples if not each.suffix]
    for each in series.samples:
        if each.suffix:
            yield family.name + each.suffix, family._replace(kind="counter"), [each]


def _add(metric: Metric, kind: str, labels: Labels, samples: Sequence[Sample], started_ns: int, now_ns: int) -> None:
    if kind == "histogram":
        metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
        metric.histogram.data_points.append(_histogram(labels, samples, started_ns, now_ns))
        return
    if kind == "counter":
        metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
        metric.sum.is_monotonic = True
    points = metric.sum.data_points if kind == "counter" else metric.gauge.data_points
    for sample in samples:
        points.append(
            NumberDataPoint(
                attributes=_attributes((*labels, *sample.labels)),
                start_time_unix_nano=started_ns if kind == "counter" else 0,
                time_unix_nano=now_ns,
                as_double=sample.value,
            )
        )


def _histogram(labels: Labels, samples: Sequence[Sample], started_ns: int, now_ns: int) -> HistogramDataPoint:
    """Of cumulative buckets, the last without a bound, then their sum and count."""
    *buckets, total, count = samples
    cumulative = [int(each.value) for each in buckets]
    return HistogramDataPoint(
        attributes=_attributes(labels),
        start_time_unix_nano=started_ns,
        time_unix_nano=now_ns,
        count=int(count.value),
        sum=total.value,
        bucket_counts=[here - before for before, here in zip([0, *cumulative], cumulative, strict=False)],
        explicit_bounds=[float(each.labels[0][1]) for each in buckets[:-1]],
    )


def _attributes(labels: Iterable[tuple[str, str]]) -> list[KeyValue]:
    return [KeyValue(key=name, value=AnyValue(string_value=value)) for name, value in labels]


def _field(number: int, value: bytes) -> bytes:
    """A length-delimited field of a serialized message."""
    start, length = bytearray([number << 3 | 2]), len(value)
    while length > 0x7F:
        start.append(length & 0x7F | 0x80)
        length >>= 7
    start.append(length)
    return bytes(start) + value
