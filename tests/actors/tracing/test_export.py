"""Mode opentelemetry: what a collector receives, as OTLP over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import trio

from actors.tracing.settings import ExportSettings, TracerSettings
from actors.tracing.tracer import Tracer
from protocol.errors import InvalidArgument
from protocol.server_settings import Trace, TraceSettings

pytest.importorskip("opentelemetry.sdk", reason="needs the extra trace")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


class Collector:
    """A collector on a port of its own. `status` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[ExportTraceServiceRequest] = []
        self.has_request = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces" and collector.status == 200:
                    collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                collector.has_request.set()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/traces"

    @property
    def resource(self) -> dict[str, str]:
        return {each.key: each.value.string_value for each in self.requests[0].resource_spans[0].resource.attributes}

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    serving = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    yield made
    made.server.shutdown()
    serving.join()
    made.server.server_close()


@asynccontextmanager
async def exporting(
    collector: Collector, *level: str, start: dict[str, Any] | None = None, **export: Any
) -> AsyncIterator[Tracer]:
    settings = TracerSettings(
        TraceSettings(level or ("TIMESTAMPS",), mode="opentelemetry", **{"rate": 1, **(start or {})}),
        ExportSettings(collector.url, **export),
    )
    tracer = Tracer(settings, lambda _: True)
    async with trio.open_nursery() as nursery:
        await nursery.start(tracer.run)
        yield tracer
        nursery.cancel_scope.cancel()


def stamp_all(trace: Trace | None, names: Sequence[str], *, id: str = "r") -> None:
    assert trace is not None
    trace.identify(3, id)
    for ns, name in enumerate(names):
        trace.stamp(name, ns * 1000)
    trace.end()


def value(attribute: Any) -> object:
    return getattr(attribute.value, attribute.value.WhichOneof("value"))


def attributes(span: Any) -> dict[str, object]:
    return {each.key: value(each) for each in span.attributes}


REQUEST = [
    "HTTP_RECV_START",
    "HTTP_RECV_END",
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
    "HTTP_SEND_START",
    "HTTP_SEND_END",
]


async def test_the_spans_of_a_request(collector: Collector) -> None:
    """Root, model, computation: nested, with the stamps as events at the wall clock's times."""
    epoch = time.time_ns() - time.monotonic_ns()
    async with exporting(collector) as tracer:
        stamp_all(tracer.sample("m"), REQUEST)
    root, model, compute = sorted(collector.spans(), key=lambda span: span.start_time_unix_nano)
    assert [span.name for span in (root, model, compute)] == ["InferRequest", "m", "compute"]
    assert (root.parent_span_id, model.parent_span_id, compute.parent_span_id) == (b"", root.span_id, model.span_id)
    assert len({span.trace_id for span in (root, model, compute)}) == 1
    assert [event.name for event in root.events] == [REQUEST[0], REQUEST[1], REQUEST[9], REQUEST[10]]
    assert [event.name for event in model.events] == [REQUEST[2], REQUEST[3], REQUEST[8]]
    assert [event.name for event in compute.events] == REQUEST[4:8]
    assert (
        attributes(root)
        == attributes(model)
        == {
            "triton.model_name": "m",
            "triton.model_version": 3,
            "triton.trace_id": 1,
            "triton.trace_parent_id": 0,
            "triton.request_id": "r",
        }
    )
    begun = root.start_time_unix_nano
    assert abs(begun - epoch) < 10**9
    assert [
        (span.start_time_unix_nano - begun, span.end_time_unix_nano - begun) for span in (root, model, compute)
    ] == [
        (0, 10_000),
        (2_000, 8_000),
        (4_000, 7_000),
    ]


async def test_a_request_that_was_refused_by_the_edge(collector: Collector) -> None:
    """It has a root only; one without any stamp has no span."""
    async with exporting(collector) as tracer:
        stamp_all(tracer.sample("m"), REQUEST[:2], id="")
        stamp_all(tracer.sample("m"), [])
    (root,) = collector.spans()
    assert root.name == "InferRequest"
    assert "triton.request_id" not in attributes(root)


async def test_the_caller_s_context_is_followed(collector: Collector) -> None:
    """Such requests are always traced, whatever the rate and the caller's sampled flag; a header that is none counts
    as a root of its own."""
    async with exporting(collector, start={"rate": 0}) as tracer:
        assert tracer.follows_context
        assert tracer.sample("m") is None
        stamp_all(tracer.sample("m", traceparent=CALLER, tracestate="vendor=x"), ["HTTP_RECV_START"])
        stamp_all(tracer.sample("m", traceparent="nonsense"), ["HTTP_RECV_START"])
    followed, root = collector.spans()
    assert followed.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert followed.parent_span_id.hex() == "b7ad6b7169203331"
    assert followed.trace_state == "vendor=x"
    assert root.parent_span_id == b""
    assert root.trace_id != followed.trace_id


async def test_tracing_that_is_off_follows_nobody(collector: Collector) -> None:
    async with exporting(collector, "OFF") as tracer:
        assert not tracer.follows_context
        assert tracer.sample("m", traceparent=CALLER) is None
        with pytest.raises(InvalidArgument, match="level TENSORS is not supported in mode opentelemetry"):
            tracer.update({"trace_level": ["TENSORS"]})
        tracer.update({"trace_level": ["TIMESTAMPS"], "trace_rate": ["0"]})
        assert tracer.follows_context
    assert collector.requests == []


@pytest.mark.parametrize(
    ("environment", "flags", "expected"),
    [
        ({}, {}, {"service.name": "triton-inference-server"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=env,zone=z"}, {}, {"service.name": "env", "zone": "z"}),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=env,zone=z"},
            {"service.name": "flag"},
            {"service.name": "flag", "zone": "z"},
        ),
    ],
)
async def test_the_resource(
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    flags: dict[str, str],
    expected: dict[str, str],
) -> None:
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    async with exporting(collector, resource=flags) as tracer:
        stamp_all(tracer.sample("m"), REQUEST)
    assert expected.items() <= collector.resource.items()


async def test_spans_leave_when_the_delay_is_over(collector: Collector) -> None:
    """Not only at the end."""
    async with exporting(collector, bsp_schedule_delay=10) as tracer:
        stamp_all(tracer.sample("m"), REQUEST)
        assert await trio.to_thread.run_sync(collector.has_request.wait, 10)
        assert len(collector.spans()) == 3


async def test_a_collector_that_fails_is_nobody_s_trouble(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked again for a while, but not beyond the grace at the end."""
    collector.status = 503
    monkeypatch.setattr("actors.tracing.tracer.GRACE_SECONDS", 0.2)
    with trio.fail_after(10):
        async with exporting(collector) as tracer:
            stamp_all(tracer.sample("m"), REQUEST)
    assert "the last traces could not be sent within 0.2 s" in caplog.text


async def test_attributes_of_the_request_are_those_of_its_root(collector: Collector) -> None:
    """Also lists of texts; after the end of the trace there are no more."""
    async with exporting(collector) as tracer:
        trace = tracer.sample("m")
        assert trace is not None
        trace.annotate({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 3})
        trace.annotate({"gen_ai.response.finish_reasons": ("stop", "length"), "gen_ai.request.temperature": 0.5})
        stamp_all(trace, REQUEST)
        trace.annotate({"late": "x"})
    root, *others = sorted(collector.spans(), key=lambda span: span.start_time_unix_nano)
    found = attributes(root)
    reasons = found.pop("gen_ai.response.finish_reasons")
    assert [each.string_value for each in reasons.values] == ["stop", "length"]  # type: ignore[attr-defined]
    assert {name: found[name] for name in found if not name.startswith("triton.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.request.temperature": 0.5,
    }
    assert not any(name.startswith("gen_ai") for span in others for name in attributes(span))
