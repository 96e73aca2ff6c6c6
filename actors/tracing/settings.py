"""Trace settings: parsing and validation of the trace extension's settings, from flags and from clients.

Pure: `actors.tracing.tracer` consults it. Source: Triton's trace extension (reference: HTTP section "Trace settings").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from protocol.errors import InvalidArgument, Unsupported
from protocol.server_settings import TraceSettings

DEFAULT_URL = "http://localhost:4318/v1/traces"

OFF = "OFF"
TIMESTAMPS = "TIMESTAMPS"
TENSORS = "TENSORS"

_UINT32_MAX = 2**32 - 1
_INT32_MAX = 2**31 - 1
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
# Longer numbers are out of every range; they are not worth converting.
_LONGEST_NUMBER = 20


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Mode `opentelemetry`: where spans go to. `None` leaves a value to the environment (`OTEL_BSP_*`), then to the
    library's own; the delay is in milliseconds."""

    url: str = DEFAULT_URL
    resource: Mapping[str, str] = field(default_factory=dict)
    bsp_max_queue_size: int | None = None
    bsp_schedule_delay: int | None = None
    bsp_max_export_batch_size: int | None = None

    def texts(self) -> tuple[tuple[str, str], ...]:
        """The settings that are given, by their names on the wire."""
        given = [("url", self.url)]
        if self.resource:
            given.append(("resource", ",".join(f"{key}={value}" for key, value in self.resource.items())))
        for name in ("bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"):
            value = getattr(self, name)
            if value is not None:
                given.append((name, str(value)))
        return tuple(given)


@dataclass(frozen=True, slots=True)
class TracerSettings:
    """Tracing at the server's start: the global settings, to which a cleared one returns, and the export."""

    start: TraceSettings = field(default_factory=TraceSettings)
    export: ExportSettings = field(default_factory=ExportSettings)


@dataclass(frozen=True, slots=True)
class Changes:
    """A client's update: fields of `TraceSettings` with their new values, and those to clear."""

    values: Mapping[str, object]
    cleared: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.values or self.cleared)


# The fields that clients may change, by their names on the wire.
CHANGEABLE = {"trace_level": "level", "trace_rate": "rate", "trace_count": "count", "log_frequency": "log_frequency"}


def parse_changes(changes: Mapping[str, Sequence[str] | None]) -> Changes:
    """As `TraceControl.update` takes them.

    Raises:
        InvalidArgument: a value that is none. Unsupported: `trace_file`, even without a value.
    """
    if "trace_file" in changes:
        raise Unsupported("trace file location can not be updated through network protocol")
    values: dict[str, object] = {}
    cleared: set[str] = set()
    for name, field_name in CHANGEABLE.items():
        if name not in changes:
            continue
        texts = changes[name]
        if texts is None:
            cleared.add(field_name)
        elif name == "trace_level":
            level = _level(texts)
            if level:
                values[field_name] = level
        else:
            values[field_name] = _number(name, texts)
    return Changes(values, frozenset(cleared))


def _level(words: Sequence[str]) -> tuple[str, ...]:
    """In the order in which it is answered; empty where no word is known."""
    if OFF in words:
        if len(words) > 1:
            raise InvalidArgument("Expect only one trace level 'OFF' is specified")
        return (OFF,)
    return tuple(word for word in (TIMESTAMPS, TENSORS) if word in words)


def _number(name: str, texts: Sequence[str]) -> int:
    if len(texts) != 1:
        raise InvalidArgument(f"expect only 1 value for '{name}'")
    (text,) = texts
    lowest, highest = (-1, _INT32_MAX) if name == "trace_count" else (0, _UINT32_MAX)
    if not _WHOLE_NUMBER.fullmatch(text):
        raise InvalidArgument(f"Unable to parse '{name}', got: {text}")
    out_of_range = InvalidArgument(
        f"Unable to parse '{name}', value is out of range [ {lowest}, {highest} ], got: {text}"
    )
    if len(text) > _LONGEST_NUMBER:
        raise out_of_range
    value = int(text)
    if name == "trace_count" and -_INT32_MAX - 1 <= value < lowest:
        raise InvalidArgument(f"Unable to parse '{name}'. Expecting value >= {lowest}, got:{value}")
    if not lowest <= value <= highest:
        raise out_of_range
    return value


def changed(settings: TraceSettings, changes: Changes, fallback: TraceSettings) -> TraceSettings:
    """The settings after an update; cleared fields come from `fallback`.

    Raises:
        InvalidArgument: they ask for traces that are impossible.
    """
    new = followed(settings, fallback, changes.cleared)
    new = replace(new, **changes.values)  # type: ignore[arg-type]  # `parse_changes` has made them of the right types
    if not new.is_off:
        reason = invalid_reason(new)
        if reason:
            raise InvalidArgument(f"Attempting to set invalid trace setting :{reason}")
    return new


def followed(settings: TraceSettings, fallback: TraceSettings, names: frozenset[str]) -> TraceSettings:
    """The settings with the named fields of `fallback`."""
    return replace(
        settings, **{each.name: getattr(fallback, each.name) for each in fields(fallback) if each.name in names}
    )


def invalid_reason(settings: TraceSettings) -> str:
    """Why these settings trace nothing; empty if they may."""
    if settings.is_off:
        return "tracing is disabled"
    if settings.mode == "opentelemetry":
        return "level TENSORS is not supported in mode opentelemetry" if TENSORS in settings.level else ""
    if settings.rate == 0:
        return "sample rate must be non-zero"
    if not settings.file:
        return "trace file name is not given"
    return ""
