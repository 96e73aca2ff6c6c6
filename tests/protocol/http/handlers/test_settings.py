"""Trace and log settings, called through the application."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.server_settings import TraceSettings
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_services import FakeTraceControl, make_services

TRACE = "/v2/trace/setting"
MODEL_TRACE = "/v2/models/echo/trace/setting"
LOG = "/v2/logging"
TRACE_FORM = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
LOG_FORM = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def make_app(trace: FakeTraceControl | None = None) -> HttpApp:
    return HttpApp(make_services(trace=trace), HttpSettings())


async def post(app: HttpApp, path: str, body: Any) -> Answer:
    return await call(app, "POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize("path", [TRACE, MODEL_TRACE])
async def test_trace_settings_are_read(path: str) -> None:
    answer = await call(make_app(), "GET", path)
    assert (answer.status, answer.json) == (200, TRACE_FORM)
    assert answer.headers["content-type"] == "application/json"


async def test_trace_settings_of_mode_opentelemetry() -> None:
    """Its options stand in place of file and frequency."""
    settings = TraceSettings(mode="opentelemetry", mode_options=(("url", "http://x"),))
    answer = await call(make_app(FakeTraceControl(current=settings)), "GET", TRACE)
    assert answer.json == {
        "trace_level": ["OFF"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
        "url": "http://x",
    }


async def test_trace_settings_of_an_unknown_model() -> None:
    answer = await call(make_app(), "GET", "/v2/models/none/trace/setting")
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'none' is not found")


@pytest.mark.parametrize(("path", "model"), [(TRACE, ""), (MODEL_TRACE, "echo")])
async def test_trace_settings_are_changed(path: str, model: str) -> None:
    """Texts go on as lists of texts, null as None, members that are left out not at all; the answer is what holds."""
    trace = FakeTraceControl()
    body = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "5", "trace_count": None, "other": {"x": 1}}
    answer = await post(make_app(trace), path, body)
    changes = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": ["5"], "trace_count": None}
    assert trace.updates == [(model, changes)]
    assert answer.json == {**TRACE_FORM, "trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "5"}


@pytest.mark.parametrize("value", ["x", None, 5, ["a"]])
async def test_the_trace_file_stays(value: Any) -> None:
    trace = FakeTraceControl()
    answer = await post(make_app(trace), TRACE, {"trace_file": value, "trace_rate": "5"})
    assert (answer.status, answer.error) == (501, "trace file location can not be updated through network protocol")
    assert trace.updates == []


EMPTY = "failed to parse the request JSON buffer: The document is empty at 0"
NO_OBJECT = "Unable to parse the request JSON: attempt to access JSON non-object as object, got array"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", EMPTY),
        (b"{", "failed to parse the request JSON buffer: "),
        ([], NO_OBJECT),
        ({"trace_rate": 5}, "Unable to parse 'trace_rate': attempt to access JSON non-string as string, got int"),
        ({"log_frequency": True}, "Unable to parse 'log_frequency': attempt to access JSON non-string as string"),
        ({"trace_level": "OFF"}, "Unable to parse 'trace_level': attempt to access JSON non-array as array, got str"),
        ({"trace_level": [5]}, "Unable to parse 'trace_level': attempt to access JSON non-string as string, got int"),
    ],
)
async def test_wrong_trace_settings(body: Any, text: str) -> None:
    trace = FakeTraceControl()
    answer = await post(make_app(trace), TRACE, body)
    assert answer.status == 400
    assert answer.error.startswith(text)
    assert trace.updates == []


async def test_log_settings_are_read() -> None:
    answer = await call(make_app(), "GET", LOG)
    assert (answer.status, answer.json) == (200, LOG_FORM)


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ({}, {}),
        ({"log_info": False, "log_verbose_level": 3}, {"log_info": False, "log_verbose_level": 3}),
        (
            {"log_warning": False, "log_error": False, "log_format": "ISO8601", "other": 1},
            {"log_warning": False, "log_error": False, "log_format": "ISO8601"},
        ),
        (dict.fromkeys(LOG_FORM), {}),
    ],
)
async def test_log_settings_are_changed(body: Any, changed: dict[str, Any]) -> None:
    """Null and unknown members are ignored; the answer is what holds then."""
    app = make_app()
    answer = await post(app, LOG, body)
    assert (answer.status, answer.json) == (200, {**LOG_FORM, **changed})
    assert (await call(app, "GET", LOG)).json == answer.json


async def test_the_log_file_stays() -> None:
    answer = await post(make_app(), LOG, {"log_file": "x"})
    assert (answer.status, answer.error) == (501, "log file location can not be updated through network protocol")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", EMPTY),
        ([], NO_OBJECT),
        ({"log_info": 1}, "Unable to parse 'log_info': attempt to access JSON non-boolean as boolean, got int"),
        ({"log_verbose_level": -1}, "Unable to parse 'log_verbose_level': attempt to access JSON non-unsigned-integer"),
        ({"log_verbose_level": True}, "Unable to parse 'log_verbose_level': attempt to access JSON non-unsigned"),
        ({"log_format": 5}, "Unable to parse 'log_format': attempt to access JSON non-string as string, got int"),
        ({"log_format": "x"}, "invalid argument for --log_format, got: x"),
    ],
)
async def test_wrong_log_settings(body: Any, text: str) -> None:
    """Where one is refused, all stay as they were."""
    app = make_app()
    wrong = {"log_error": False, **body} if isinstance(body, dict) else body
    answer = await post(app, LOG, wrong)
    assert answer.status == 400
    assert answer.error.startswith(text)
    assert (await call(app, "GET", LOG)).json == LOG_FORM
