"""Load reports: the header alone, and on responses to inference and the generate extension, also over real HTTP."""

from __future__ import annotations

import base64
import json
import logging
import math
import struct
from collections.abc import Mapping

import httpx
import pytest
import trio

from protocol.core import TensorMetadata
from protocol.http.app import HttpApp
from protocol.http.server import serve_http
from protocol.http.settings import HttpSettings
from protocol.load_report import load_report_headers, load_report_trailers
from tests.protocol.http.asgi import call
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services

REPORT = {"kv_cache_utilization": 0.25, "max_token_capacity": 4096}
AS_TEXT = "TEXT named_metrics.kv_cache_utilization=0.25, named_metrics.max_token_capacity=4096"
AS_JSON = 'JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":4096}}'
FORMAT = "endpoint-load-metrics-format"


def report(model: str) -> Mapping[str, float]:
    assert model == "echo"
    return REPORT


@pytest.mark.parametrize(("wanted", "header"), [(b"text", AS_TEXT), (b"json", AS_JSON), (b"JSON", AS_JSON)])
def test_both_forms(wanted: bytes, header: str) -> None:
    assert load_report_headers({FORMAT.encode(): wanted}, report, "echo") == (
        (b"endpoint-load-metrics", header.encode()),
    )


@pytest.mark.parametrize("figures", [{}, {"kv_cache_utilization": math.nan}, {"kv_cache_utilization": math.inf}])
def test_no_header_where_there_is_nothing_to_tell(figures: Mapping[str, float]) -> None:
    assert load_report_headers({FORMAT.encode(): b"json"}, lambda model: figures, "echo") == ()
    assert load_report_headers({FORMAT.encode(): b"json"}, None, "echo") == ()


def test_only_who_asks_is_told() -> None:
    def never(model: str) -> Mapping[str, float]:
        raise AssertionError

    assert load_report_headers({}, never, "echo") == ()
    assert load_report_headers({FORMAT.encode(): b"xml"}, never, "echo") == ()


def test_a_report_that_fails_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def broken(model: str) -> Mapping[str, float]:
        raise RuntimeError("no figures")

    caplog.set_level(logging.ERROR)
    assert load_report_headers({FORMAT.encode(): b"text"}, broken, "echo") == ()
    assert "the load report failed" in caplog.text


def make_core() -> FakeCore:
    return FakeCore(inputs=(TensorMetadata("text", "BYTES", (-1, 1)),))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["generate", "generate_stream"])
@pytest.mark.parametrize(("wanted", "header"), [("text", AS_TEXT), ("json", AS_JSON), ("xml", None), (None, None)])
async def test_generate_responses_carry_it(path: str, wanted: str | None, header: str | None) -> None:
    async with trio.open_nursery() as nursery:
        services = make_services(make_core(), load_report=report)
        stop = trio.Event()
        host, port = await nursery.start(serve_http, services, HttpSettings(host="127.0.0.1", port=0), stop)
        async with httpx.AsyncClient() as client:
            response = await client.post(
                f"http://{host}:{port}/v2/models/echo/{path}",
                json={"text": "hi"},
                headers={} if wanted is None else {FORMAT: wanted},
            )
        assert response.status_code == 200
        assert response.headers.get("endpoint-load-metrics") == header
        stop.set()


async def test_so_do_responses_to_inference() -> None:
    app = HttpApp(make_services(make_core(), load_report=report), HttpSettings())
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["hi"]}]}
    answer = await call(app, "POST", "/v2/models/echo/infer", json.dumps(body).encode(), {FORMAT: "text"})
    assert answer.status == 200
    assert answer.headers["endpoint-load-metrics"] == AS_TEXT


def test_the_binary_form() -> None:
    """An OrcaLoadReport, read field by field as protocol buffers have them."""
    figures = {"waiting": 3, "application_utilization": 0.5}
    ((name, value),) = load_report_headers({FORMAT.encode(): b"bin"}, lambda model: figures, "echo")
    word, _, coded = value.partition(b" ")
    message = base64.b64decode(coded)
    assert (name, word) == (b"endpoint-load-metrics", b"BIN")
    expected = b"\x0a\x07waiting\x11" + struct.pack("<d", 3)
    assert message == b"\x42" + bytes((len(expected),)) + expected + b"\x49" + struct.pack("<d", 0.5)
    ((trailer, value),) = load_report_trailers(b"bin", lambda model: figures, "echo")
    assert trailer == b"endpoint-load-metrics-bin"
    assert base64.b64decode(value + b"=" * (-len(value) % 4)) == message


def test_the_utilization_is_no_named_metric() -> None:
    figures = {"application_utilization": 0.5, "waiting": 3}
    for wanted, text in (
        (b"text", b"TEXT application_utilization=0.5, named_metrics.waiting=3"),
        (b"json", b'JSON {"named_metrics":{"waiting":3},"application_utilization":0.5}'),
    ):
        assert load_report_trailers(wanted, lambda model: figures, "echo") == ((b"endpoint-load-metrics", text),)
    assert load_report_trailers(b"xml", lambda model: figures, "echo") == ()
    assert load_report_trailers(b"bin", lambda model: {}, "echo") == ()
