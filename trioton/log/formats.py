"""Formats of log lines: Triton's two as text, and two as JSON: OpenTelemetry's log data model, and the Elastic Common
Schema (ECS).

A line's tags (`protocol.log.tags`) stand behind its text as `name=value`, and in JSON in the places that each schema
has for them. Source: Triton, "Logging"; OpenTelemetry, "Logs Data Model" and "Semantic conventions"; ECS 8.11.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import msgspec

from protocol.log.records import LoggedException, exception_of, severity_of
from protocol.log.tags import TAGS, Tag, Tags

# For `extra`: the message is shown as it is, below its line. For our own text only, such as tables.
VERBATIM = {"verbatim": True}

ECS_VERSION = "8.11.0"
_PLAIN = re.compile(r"[^\s\"=,]+")
# Control characters but tabs and line ends, separators that some take for line ends, and what turns the writing around.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_ENCODER = msgspec.json.Encoder()


def make_formatter(log_format: str, *, service: str = "trioton", escape: bool = True) -> logging.Formatter:
    """The formatter of a name out of `protocol.server_settings.LOG_FORMATS`. `service` is the server's name; `escape`
    is for Triton's formats."""
    if log_format == "json":
        return OpenTelemetryFormatter(service)
    if log_format == "ecs":
        return EcsFormatter(service)
    return TritonFormatter(log_format, escape=escape)


def _text(record: logging.LogRecord) -> str:
    """The message, without lone surrogates (from file names), which cannot be written."""
    return _writable(record.getMessage())


def _writable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _tags(record: logging.LogRecord) -> Tags:
    tags: Tags = getattr(record, "tags", {})
    return {name: _writable_tag(tags[name]) for name in TAGS if tags.get(name)}


def _writable_tag(tag: Tag) -> Tag:
    if isinstance(tag, str):
        return _writable(tag)
    return tag if isinstance(tag, int) else tuple(map(_writable, tag))


def _exception(record: logging.LogRecord) -> LoggedException | None:
    found = exception_of(record)
    return None if found is None else LoggedException(*map(_writable, found))


def _visible(text: str) -> str:
    """Text in which nothing moves a terminal's cursor, changes its colors, or hides."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class TritonFormatter(logging.Formatter):
    """`LMMDD hh:mm:ss.uuuuuu <pid> <file>:<line>] <message>`, or in ISO8601
    `YYYY-MM-DDThh:mm:ssZ L <pid> <file>:<line>] <message>`; L is one of I, W, E. Tags follow the message."""

    def __init__(self, layout: str, *, escape: bool = True) -> None:
        super().__init__()
        self._layout = layout
        self._escape = escape

    def format(self, record: logging.LogRecord) -> str:
        place = f"{_quoted(record.filename)}:{record.lineno}" if record.pathname else "print"  # of a model
        line = f"{self._head(record)} {record.process} {place}] {self._message(record)}"
        line += "".join(f" {name}={_quoted(value)}" for name, value in self._tags(record).items())
        if (exception := _exception(record)) is not None:
            # Indented, for the same reason as the escapes.
            line += "".join(f"\n    {_visible(part)}" for part in exception.stacktrace.splitlines())
        return line

    def _tags(self, record: logging.LogRecord) -> Tags:
        logger = getattr(record, "logger_name", "")
        return {**_tags(record), "logger": _writable(logger)} if logger else _tags(record)

    def _head(self, record: logging.LogRecord) -> str:
        level = "I" if record.levelno < logging.WARNING else "W" if record.levelno < logging.ERROR else "E"
        time = datetime.fromtimestamp(record.created, UTC)
        if self._layout == "ISO8601":
            return f"{time:%Y-%m-%dT%H:%M:%SZ} {level}"
        return f"{level}{time:%m%d %H:%M:%S.%f}"

    def _message(self, record: logging.LogRecord) -> str:
        if getattr(record, "verbatim", False):
            return f"\n{record.getMessage()}"
        message = _text(record)
        return _visible(json.dumps(message, ensure_ascii=False)) if self._escape else message


def _quoted(value: Tag) -> str:
    if not isinstance(value, str):
        return str(value) if isinstance(value, int) else ",".join(map(_quoted, value))
    if _PLAIN.fullmatch(value) and value.isprintable():
        return value
    return _visible(json.dumps(value, ensure_ascii=False))


class JsonFormatter(logging.Formatter):
    """Base of those that write one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return _visible(_ENCODER.encode(self.members(record)).decode())

    def members(self, record: logging.LogRecord) -> Mapping[str, Any]:
        raise NotImplementedError

    def body(self, record: logging.LogRecord) -> str:
        body: str | None = getattr(record, "body", None)
        return _text(record) if body is None else _writable(body)

    def logger(self, record: logging.LogRecord) -> str:
        return _writable(getattr(record, "logger_name", record.name))


class OpenTelemetryFormatter(JsonFormatter):
    """A log record of OpenTelemetry's data model, its fields under their names there."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._resource = {"service.name": service, "service.version": metadata.version("trioton")}

    def members(self, record: logging.LogRecord) -> Mapping[str, Any]:
        tags = dict(_tags(record))
        text, number = _severity(severity_of(record))
        members: dict[str, Any] = {
            "Timestamp": str(_nanoseconds(record)),
            "SeverityText": text,
            "SeverityNumber": number,
            "Body": self.body(record),
        }
        if trace_id := tags.pop("trace_id", ""):
            members["TraceId"] = trace_id
        if span_id := tags.pop("span_id", ""):
            members["SpanId"] = span_id
        members["Resource"] = {**self._resource, "process.pid": record.process}
        members["InstrumentationScope"] = {"Name": self.logger(record)}
        attributes: dict[str, Any] = {**tags}
        if record.pathname:
            attributes |= {"code.file.path": _writable(record.pathname), "code.line.number": record.lineno}
        if (exception := _exception(record)) is not None:
            attributes |= {f"exception.{name}": value for name, value in exception._asdict().items()}
        members["Attributes"] = attributes
        return members


class EcsFormatter(JsonFormatter):
    """A document of the Elastic Common Schema, its first fields as `ecs-logging` demands them."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = {"name": service, "version": metadata.version("trioton")}

    def members(self, record: logging.LogRecord) -> Mapping[str, Any]:
        tags = dict(_tags(record))
        time = datetime.fromtimestamp(record.created, UTC)
        origin: dict[str, Any] = {}
        if record.pathname:
            origin["file"] = {"name": _writable(record.filename), "line": record.lineno}
        if record.funcName:
            origin["function"] = record.funcName
        members: dict[str, Any] = {
            "@timestamp": f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03d}Z",
            "log.level": _level_name(severity_of(record)),
            "message": self.body(record),
            "ecs.version": ECS_VERSION,
            "log": {"logger": self.logger(record), "origin": origin},
            "process": {"pid": record.process},
            "service": self._service,
        }
        for name, place in (("trace_id", "trace"), ("span_id", "span")):
            if value := tags.pop(name, ""):
                members[place] = {"id": value}
        request_ids = tags.pop("request_ids", ())
        if request_id := tags.pop("request_id", request_ids):
            members["http"] = {"request": {"id": request_id}}
        if key := tags.pop("key", ""):
            members["user"] = {"name": key}
        if tags:  # whose values are all texts in this schema
            members["labels"] = {name: str(value) for name, value in tags.items()}
        if (exception := _exception(record)) is not None:
            members["error"] = dict(zip(("type", "message", "stack_trace"), exception, strict=True))
        return members


def _level_name(level: int) -> str:
    """The standard library's name of a level, or of the next one below it."""
    known = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO)
    return logging.getLevelName(next((each for each in known if level >= each), logging.DEBUG)).lower()


def _severity(level: int) -> tuple[str, int]:
    """Text and number (OpenTelemetry, "Severity Fields")."""
    for least, text, number in (
        (logging.CRITICAL, "FATAL", 21),
        (logging.ERROR, "ERROR", 17),
        (logging.WARNING, "WARN", 13),
        (logging.INFO, "INFO", 9),
        (logging.DEBUG, "DEBUG", 5),
    ):
        if level >= least:
            return text, number
    return "TRACE", 1


def _nanoseconds(record: logging.LogRecord) -> int:
    return int(record.created * 1e6) * 1000
