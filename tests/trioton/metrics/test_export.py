"""Metrics that are sent to a collector: read back as OTLP, with the values that the text has."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.sliced import finished
from tests.trioton.test_server import one as one_model
from tests.trioton.test_server import settings
from tests.trioton.test_server_tracing import infer
from trioton.metrics.families import Family, Sample, Series, gauge, histogram_samples
from trioton.server import open_server

pytest.importorskip("opentelemetry.sdk", reason="needs the extra trace")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from trioton.metrics.export import MetricsExport
from trioton.metrics.otlp import export_request

one = one_model
LABELS = (("model", "m"),)


class Collector:
    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[str | None] = []
        self.has_request = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests.append(ExportMetricsServiceRequest.FromString(gzip.decompress(body)))
                collector.headers.append(self.headers.get("x-key"))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
                collector.has_request.set()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/metrics"


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()
    thread.join()


def metrics_of(request: ExportMetricsServiceRequest) -> dict[str, Any]:
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def test_every_kind_of_series() -> None:
    series = [
        Series(Family("c_total", "counter", "C"), LABELS, (Sample(3, labels=(("reason", "x"),)), Sample(4))),
        gauge("g", "G", 1.5, LABELS),
        Series(Family("h", "histogram", "H"), LABELS, histogram_samples((1.0, 2.0), (1, 3, 6), 9.5)),
        Series(Family("s", "summary", "S"), (), (Sample(7, labels=(("quantile", "0.5"),)), Sample(8, "_sum"))),
        Series(Family("nothing", "gauge", ""), (), ()),
    ]
    work = export_request([lambda: iter(series)], [("service.name", "t")], started_ns=5, now_ns=6)
    request = ExportMetricsServiceRequest.FromString(finished(work))
    assert request.resource_metrics[0].resource.attributes[0].value.string_value == "t"
    found = metrics_of(request)
    assert set(found) == {"c_total", "g", "h", "s", "s_sum"}
    assert [point.as_double for point in found["c_total"].sum.data_points] == [3, 4]
    assert found["c_total"].sum.is_monotonic
    attributes = found["c_total"].sum.data_points[0].attributes
    assert [(each.key, each.value.string_value) for each in attributes] == [("model", "m"), ("reason", "x")]
    assert found["g"].gauge.data_points[0].as_double == 1.5
    (point,) = found["h"].histogram.data_points
    assert (list(point.bucket_counts), list(point.explicit_bounds)) == ([1, 2, 3], [1.0, 2.0])
    assert (point.count, point.sum, point.start_time_unix_nano, point.time_unix_nano) == (6, 9.5, 5, 6)
    assert found["s"].gauge.data_points[0].as_double == 7
    assert found["s_sum"].sum.data_points[0].as_double == 8


async def test_a_server_sends_its_metrics(one: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again, and at its end what there is then."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    given = replace(settings(one), metrics_export_url=collector.url, metrics_export_interval_ms=20)
    async with open_server(given) as server:
        await trio.to_thread.run_sync(collector.has_request.wait)
        await infer(server, "first")
    successes = [metrics_of(each).get("nv_inference_request_success") for each in collector.requests]
    assert [point.as_double for each in successes if each for point in each.sum.data_points][-1] == 1.0
    assert max(len(each.resource_metrics[0].scope_metrics[0].metrics) for each in collector.requests) > 20
    assert set(collector.headers) == {"secret"}


async def test_a_collector_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    """Costs a line of the log, and at the end no wait."""
    export = MetricsExport([lambda: iter([gauge("g", "", 1)])], "http://127.0.0.1:9/v1/metrics", 0.01)
    await export.collect()
    with trio.move_on_after(0):
        await export.run()
    assert export.lost_count == 1
    assert "metrics were not exported to http://127.0.0.1:9/v1/metrics, 1 times so far" in caplog.text
