"""Handlers of the trace and logging extensions: get and set.

Source: reference sections "Trace settings" and "Logging".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from protocol.errors import Unsupported
from protocol.http.codec.json_text import JsonReader
from protocol.http.exchange import HttpRequest
from protocol.http.reply import Reply, json_reply


class TraceBody(msgspec.Struct):
    """Texts, as the extension has it, also for numbers. A member that is left out stays as it is, null clears it.
    Unknown members are ignored."""

    trace_level: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    trace_rate: str | msgspec.UnsetType | None = msgspec.UNSET
    trace_count: str | msgspec.UnsetType | None = msgspec.UNSET
    log_frequency: str | msgspec.UnsetType | None = msgspec.UNSET
    trace_file: Any = msgspec.UNSET


class LogBody(msgspec.Struct):
    """A member that is left out or null stays as it is. Unknown members are ignored."""

    log_file: Any = None
    log_info: bool | None = None
    log_warning: bool | None = None
    log_error: bool | None = None
    log_verbose_level: Annotated[int, msgspec.Meta(ge=0)] | None = None
    log_format: str | None = None


_TRACE_READER = JsonReader(TraceBody)
_LOG_READER = JsonReader(LogBody)


async def trace_settings(request: HttpRequest) -> Reply:
    return json_reply(request.services.trace.settings(_model(request)).texts())


async def update_trace_settings(request: HttpRequest) -> Reply:
    """Replies with the settings as they are then."""
    body = _TRACE_READER.read(request.body)
    if body.trace_file is not msgspec.UNSET:
        raise Unsupported("trace file location can not be updated through network protocol")
    changes: dict[str, Sequence[str] | None] = {}
    for name in ("trace_level", "trace_rate", "trace_count", "log_frequency"):
        value = getattr(body, name)
        if value is not msgspec.UNSET:
            changes[name] = [value] if isinstance(value, str) else value
    return json_reply(request.services.trace.update(changes, _model(request)).texts())


async def log_settings(request: HttpRequest) -> Reply:
    return json_reply(request.services.log.settings)


async def update_log_settings(request: HttpRequest) -> Reply:
    """Replies with the settings as they are then. Where one of them is refused, all stay as they were."""
    body = _LOG_READER.read(request.body)
    if body.log_file is not None:
        raise Unsupported("log file location can not be updated through network protocol")
    control = request.services.log
    changes = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not None}
    if changes:
        control.update(replace(control.settings, **changes))
    return json_reply(control.settings)


def _model(request: HttpRequest) -> str:
    """Empty for the global settings."""
    return request.path_parameters.get("model_name", "")
