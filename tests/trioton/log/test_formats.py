"""JSON lines by OpenTelemetry's log data model and by the Elastic Common Schema, and tags in Triton's formats."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

import pytest

from protocol.log.records import LoggedException, WrittenLine
from protocol.log.tags import TaggedLog, tagged
from trioton.log.formats import VERBATIM, make_formatter

TAGS = {
    "request_id": "r-1",
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "span_id": "00f067aa0ba902b7",
    "key": "alice",
    "model": "m",
    "version": "1",
    "instance": "m_0",
}


def record(level: int = logging.INFO, message: str = "hello", **extra: Any) -> logging.LogRecord:
    exc_info = extra.pop("exc_info", None)
    made = logging.LogRecord("actors.x", level, "/srv/actors/x.py", 7, message, None, exc_info, func="act")
    made.created, made.msecs = 1_700_000_000.25, 250.0
    made.process = 4711
    vars(made).update(extra)
    return made


def line(log_format: str, made: logging.LogRecord) -> Any:
    text = make_formatter(log_format, service="s").format(made)
    assert "\n" not in text
    return json.loads(text)


def test_opentelemetry() -> None:
    found = line("json", record(**tagged(**TAGS)))
    version = found["Resource"].pop("service.version")
    assert re.fullmatch(r"[\w.+]+", version)
    assert found == {
        "Timestamp": "1700000000250000000",
        "SeverityText": "INFO",
        "SeverityNumber": 9,
        "Body": "hello",
        "TraceId": TAGS["trace_id"],
        "SpanId": TAGS["span_id"],
        "Resource": {"service.name": "s", "process.pid": 4711},
        "InstrumentationScope": {"Name": "actors.x"},
        "Attributes": {
            "request_id": "r-1",
            "key": "alice",
            "model": "m",
            "version": "1",
            "instance": "m_0",
            "code.file.path": "/srv/actors/x.py",
            "code.line.number": 7,
        },
    }


@pytest.mark.parametrize(
    ("level", "text", "number"),
    [(50, "FATAL", 21), (40, "ERROR", 17), (30, "WARN", 13), (20, "INFO", 9), (10, "DEBUG", 5), (9, "TRACE", 1)],
)
def test_severities(level: int, text: str, number: int) -> None:
    found = line("json", record(level))
    assert (found["SeverityText"], found["SeverityNumber"]) == (text, number)
    assert "TraceId" not in found


def test_elastic() -> None:
    found = line("ecs", record(logging.WARNING, **tagged(**TAGS)))
    assert list(found)[:3] == ["@timestamp", "log.level", "message"]
    del found["service"]["version"]
    assert found == {
        "@timestamp": "2023-11-14T22:13:20.250Z",
        "log.level": "warning",
        "message": "hello",
        "ecs.version": "8.11.0",
        "log": {"logger": "actors.x", "origin": {"file": {"name": "x.py", "line": 7}, "function": "act"}},
        "process": {"pid": 4711},
        "service": {"name": "s"},
        "trace": {"id": TAGS["trace_id"]},
        "span": {"id": TAGS["span_id"]},
        "http": {"request": {"id": "r-1"}},
        "user": {"name": "alice"},
        "labels": {"model": "m", "version": "1", "instance": "m_0"},
    }


def test_as_elastics_own_formatter() -> None:
    """What both write of a line has the same place and value."""
    ecs_logging = pytest.importorskip("ecs_logging")
    made = record(logging.ERROR, "failed", exc_info=_raised())
    theirs = json.loads(ecs_logging.StdlibFormatter().format(made))
    ours = line("ecs", made)
    for name in ("@timestamp", "log.level", "message"):
        assert ours[name] == theirs[name]
    assert ours["error"].keys() == theirs["error"].keys()
    assert ours["error"]["type"] == theirs["error"]["type"]
    assert ours["log"]["logger"] == theirs["log"]["logger"]
    assert ours["log"]["origin"] == theirs["log"]["origin"]
    assert ours["process"]["pid"] == theirs["process"]["pid"]


def _raised() -> Any:
    try:
        raise ValueError("no\nway \ud800")
    except ValueError:
        return sys.exc_info()


def test_exceptions() -> None:
    made = record(logging.ERROR, exc_info=_raised())
    attributes = line("json", made)["Attributes"]
    error = line("ecs", made)["error"]
    assert attributes["exception.type"] == error["type"] == "ValueError"
    assert attributes["exception.message"] == error["message"] == "no\nway \\ud800"
    assert attributes["exception.stacktrace"] == error["stack_trace"]
    assert error["stack_trace"].startswith("Traceback (most recent call last):\n")


@pytest.mark.parametrize("log_format", ["json", "ecs"])
def test_no_text_breaks_a_line(log_format: str) -> None:
    hostile = 'a"b\\\n\x1b[31m\u2028\x00\ud800'
    body = "Body" if log_format == "json" else "message"
    assert line(log_format, record(message=hostile))[body] == hostile.replace("\ud800", "\\ud800")
    assert line(log_format, record(message="+--+\n|  |", **VERBATIM))[body] == "+--+\n|  |"
    found = line(log_format, record(**tagged(model=hostile)))
    tags = found["Attributes"] if log_format == "json" else found["labels"]
    assert tags["model"] == hostile.replace("\ud800", "\\ud800")


@pytest.mark.parametrize("log_format", ["default", "ISO8601"])
def test_tags_follow_the_text(log_format: str) -> None:
    hostile = tagged(request_id="r-1", model='a b"\nE0203', key="x=1", version="")
    text = make_formatter(log_format).format(record(**hostile))
    assert text.endswith('] "hello" request_id=r-1 key="x=1" model="a b\\"\\nE0203"')
    assert make_formatter(log_format).format(record()).endswith('] "hello"')


def test_a_logger_with_tags(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = TaggedLog(logging.getLogger("trioton.model.m"), {"model": "m"}).of_instance("m_0")
    log.info("%s: %s", "m_0", "printed", extra={"body": "printed", **tagged(request_id="1")})
    written = WrittenLine(logging.WARNING, "said", "/model.py", 3)
    log.handle(written.record(log.logger, "m_0"), {"request_id": "2"})
    first, second = caplog.records
    assert (first.getMessage(), second.getMessage()) == ("m_0: printed", "m_0: said")
    assert line("json", first)["Body"] == "printed"
    found = line("json", second)
    assert (found["Body"], found["SeverityText"]) == ("said", "WARN")
    assert found["Attributes"] == {
        "request_id": "2",
        "model": "m",
        "instance": "m_0",
        "code.file.path": "/model.py",
        "code.line.number": 3,
    }


WRITTEN = WrittenLine(
    *(logging.INFO, "no price", "/m/model.py", 3, "shop", logging.DEBUG),
    LoggedException("KeyError", "'price'", "Traceback (most recent call last):\n  \x1b[31mKeyError: 'price'"),
)


def written() -> logging.LogRecord:
    return WRITTEN.record(logging.getLogger("trioton.model.m"), "m_0")


def test_a_line_of_a_workers_logger() -> None:
    found = line("json", written())
    assert (found["SeverityText"], found["SeverityNumber"]) == ("DEBUG", 5)
    assert found["InstrumentationScope"] == {"Name": "shop"}
    assert found["Attributes"]["exception.type"] == "KeyError"
    assert found["Attributes"]["exception.message"] == "'price'"
    assert found["Attributes"]["exception.stacktrace"].endswith("\x1b[31mKeyError: 'price'")
    found = line("ecs", written())
    assert (found["log.level"], found["log"]["logger"]) == ("debug", "shop")
    assert found["error"]["type"] == "KeyError"
    text = make_formatter("default").format(written())
    first, second, third = text.split("\n")
    assert first.endswith(' model.py:3] "m_0: no price" logger=shop')
    assert (second, third) == ("    Traceback (most recent call last):", "      \\u001b[31mKeyError: 'price'")


@pytest.mark.parametrize(
    ("level", "name"), [(50, "critical"), (45, "error"), (25, "info"), (10, "debug"), (3, "debug")]
)
def test_levels_have_the_standard_librarys_names_in_ecs(level: int, name: str) -> None:
    assert line("ecs", record(level))["log.level"] == name


def test_several_requests() -> None:
    several = tagged(request_ids=("a", 'b,"', "c\n"), request_count=12, model="m")
    attributes = line("json", record(**several))["Attributes"]
    assert (attributes["request_ids"], attributes["request_count"]) == (["a", 'b,"', "c\n"], 12)
    found = line("ecs", record(**several))
    assert found["http"]["request"]["id"] == ["a", 'b,"', "c\n"]
    assert found["labels"] == {"request_count": "12", "model": "m"}
    text = make_formatter("default").format(record(**several))
    assert text.endswith(r'] "hello" request_ids=a,"b,\"","c\n" request_count=12 model=m')


@pytest.mark.parametrize("log_format", ["default", "ISO8601", "json", "ecs"])
def test_nothing_reaches_a_terminal_as_a_command(log_format: str) -> None:
    """Neither by escapes of one byte or two, nor by what turns the direction of writing around."""
    hostile = "\x1b[2J\x9b31m\x7f\x08\u2028\u202e\u2066\x0b\x85"
    made = record(message=hostile, **tagged(model=hostile, request_ids=(hostile, "b")))
    vars(made).update(filename=f"{hostile}.py", logger_name=hostile, exception=LoggedException("E", hostile, hostile))
    text = make_formatter(log_format).format(made)
    assert not set(hostile) & set(text) - set("[2J31m")
