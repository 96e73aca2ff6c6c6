"""TraceSetting and LogSettings: reading, changing, and Triton's words for what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from protocol.server_settings import LogSettings, TraceSettings
from tests.protocol.grpc.caller import serving
from tests.protocol.grpc.edge_services import FakeLog, FakeTraceControl, edge_services
from tests.protocol.grpc.harness import INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED


def trace_request(model: str = "", /, **settings: list[str]) -> Any:
    request = service_pb2.TraceSettingRequest(model_name=model)
    for name, values in settings.items():
        request.settings[name].value.extend(values)
    return request


def values_of(response: Any) -> dict[str, list[str]]:
    return {name: list(setting.value) for name, setting in response.settings.items()}


GLOBAL = {
    "trace_level": ["OFF"],
    "trace_rate": ["1000"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": [""],
    "trace_mode": ["triton"],
}


async def test_reading_trace_settings() -> None:
    control = FakeTraceControl()
    async with serving(edge_services(trace=control)) as peers:
        assert values_of(await peers.ask("TraceSetting")) == GLOBAL
        assert values_of(await peers.ask("TraceSetting", trace_request("echo"))) == GLOBAL
        control.current = TraceSettings(("TIMESTAMPS", "TENSORS"), 1, 5, 2, "trace.json")
        found = values_of(await peers.ask("TraceSetting"))
        assert found["trace_level"] == ["TIMESTAMPS", "TENSORS"]
        assert (found["trace_rate"], found["trace_count"], found["trace_file"]) == (["1"], ["5"], ["trace.json"])
        control.current = TraceSettings(mode="opentelemetry", mode_options=(("url", "http://x"),))
        found = values_of(await peers.ask("TraceSetting"))
        assert sorted(found) == ["trace_count", "trace_level", "trace_mode", "trace_rate", "url"]
        assert control.updates == []


async def test_changing_trace_settings() -> None:
    """An empty list clears; what is no setting says nothing."""
    control = FakeTraceControl()
    request = trace_request(
        "echo", trace_level=["TIMESTAMPS", "TENSORS"], trace_rate=["5"], trace_count=[], other=["1"]
    )
    async with serving(edge_services(trace=control)) as peers:
        assert values_of(await peers.ask("TraceSetting", request)) == GLOBAL
        expected = {"trace_level": ("TIMESTAMPS", "TENSORS"), "trace_rate": ("5",), "trace_count": None}
        assert control.updates == [(expected, "echo")]


@pytest.mark.parametrize("settings", [{}, {"trace_rate": ["1"]}])
async def test_an_unknown_model_has_no_trace_settings(settings: dict[str, list[str]]) -> None:
    """The text is that of every other call, as over HTTP."""
    async with serving() as peers:
        refusal = await peers.refusal("TraceSetting", trace_request("other", **settings))
        assert refusal == (NOT_FOUND, "Request for unknown model: 'other' is not found")


TRACE_ERRORS: list[tuple[dict[str, list[str]], int, str]] = [
    ({"trace_rate": ["1", "2"]}, INVALID_ARGUMENT, "expect only 1 value for 'trace_rate'"),
    ({"trace_count": ["1", "1"]}, INVALID_ARGUMENT, "expect only 1 value for 'trace_count'"),
    ({"log_frequency": ["1", "2", "3"]}, INVALID_ARGUMENT, "expect only 1 value for 'log_frequency'"),
    ({"trace_file": ["x"]}, UNIMPLEMENTED, "trace file location can not be updated through network protocol"),
    ({"trace_file": []}, UNIMPLEMENTED, "trace file location can not be updated through network protocol"),
]


@pytest.mark.parametrize(("settings", "status", "message"), TRACE_ERRORS)
async def test_trace_settings_that_are_refused(settings: dict[str, list[str]], status: int, message: str) -> None:
    control = FakeTraceControl()
    async with serving(edge_services(trace=control)) as peers:
        assert await peers.refusal("TraceSetting", trace_request(**settings)) == (status, message)
        assert control.updates == []


def log_request(**settings: Any) -> Any:
    """Values become the field of their kind; None leaves the value unset."""
    request = service_pb2.LogSettingsRequest()
    for name, value in settings.items():
        setting = request.settings[name]
        match value:
            case bool():
                setting.bool_param = value
            case int():
                setting.uint32_param = value
            case str():
                setting.string_param = value
    return request


async def test_reading_log_settings() -> None:
    log = FakeLog(LogSettings("server.log", False, True, True, 3, "ISO8601"))
    async with serving(edge_services(log=log)) as peers:
        settings = (await peers.ask("LogSettings")).settings
        kinds = {name: setting.WhichOneof("parameter_choice") for name, setting in settings.items()}
        assert {name: getattr(settings[name], kind) for name, kind in kinds.items()} == {
            "log_file": "server.log",
            "log_info": False,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": 3,
            "log_format": "ISO8601",
        }
        assert kinds["log_verbose_level"] == "uint32_param"
        assert kinds["log_info"] == "bool_param"


async def test_changing_log_settings() -> None:
    log = FakeLog()
    async with serving(edge_services(log=log)) as peers:
        request = log_request(log_info=False, log_verbose_level=2, log_format="ISO8601", other="x")
        settings = (await peers.ask("LogSettings", request)).settings
        assert settings["log_verbose_level"].uint32_param == 2
        assert log.settings == LogSettings("", False, True, True, 2, "ISO8601")


LOG_ERRORS: list[tuple[dict[str, Any], int, str]] = [
    ({"log_info": "yes"}, INVALID_ARGUMENT, "expect boolean for 'log_info'"),
    ({"log_warning": 1}, INVALID_ARGUMENT, "expect boolean for 'log_warning'"),
    ({"log_error": None}, INVALID_ARGUMENT, "expect boolean for 'log_error'"),
    ({"log_verbose_level": True}, INVALID_ARGUMENT, "expect int32 for 'log_verbose_level'"),
    ({"log_format": 1}, INVALID_ARGUMENT, "expect string for 'log_format'"),
    ({"log_format": "xml"}, INVALID_ARGUMENT, "invalid argument for log_format, got: xml"),
    ({"log_file": "x"}, UNIMPLEMENTED, "log file location can not be updated through network protocol"),
    ({"log_file": None}, UNIMPLEMENTED, "log file location can not be updated through network protocol"),
]


@pytest.mark.parametrize(("settings", "status", "message"), LOG_ERRORS)
async def test_log_settings_that_are_refused(settings: dict[str, Any], status: int, message: str) -> None:
    """All of the request, also what is right in it."""
    log = FakeLog()
    async with serving(edge_services(log=log)) as peers:
        request = log_request(**{"log_info": False, **settings})
        assert await peers.refusal("LogSettings", request) == (status, message)
        assert log.settings == LogSettings()
