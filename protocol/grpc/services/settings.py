"""The trace and log settings methods of the inference service.

Source: Triton's trace and logging extensions, whose rules for gRPC and texts these are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from protocol.errors import InvalidArgument, Unsupported
from protocol.grpc.generated import inference as pb
from protocol.server_settings import LogSettings
from protocol.services import EdgeServices

# Settings with one value each, and `trace_level` with several; what else a client names says nothing.
_TRACE_SETTINGS = ("trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file")

# The kind of each log setting, in Triton's words.
_LOG_KINDS = {
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


class SettingsCalls(pb.GrpcInferenceServiceBase):
    """A part of the inference service."""

    _services: EdgeServices

    async def trace_setting(self, message: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        """Change the settings that the request names, then answer all; those of no model are the global ones."""
        changes = _trace_changes({name: setting.value for name, setting in message.settings.items()})
        control = self._services.trace
        model = message.model_name
        settings = control.update(changes, model) if changes else control.settings(model)
        return pb.TraceSettingResponse(
            {
                name: pb.TraceSettingResponseSettingValue([value] if isinstance(value, str) else list(value))
                for name, value in settings.texts().items()
            }
        )

    async def log_settings(self, message: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        """Change the settings that the request names, all or none, then answer all."""
        control = self._services.log
        if message.settings:
            changed = _changed(control.settings, message.settings)
            try:
                control.update(changed)
            except InvalidArgument:  # nothing else of what is checked here can be wrong with it
                raise InvalidArgument(f"invalid argument for log_format, got: {changed.log_format}") from None
        settings = control.settings
        value = pb.LogSettingsResponseSettingValue
        return pb.LogSettingsResponse(
            {
                "log_file": value(string_param=settings.log_file),
                "log_info": value(bool_param=settings.log_info),
                "log_warning": value(bool_param=settings.log_warning),
                "log_error": value(bool_param=settings.log_error),
                "log_verbose_level": value(uint32_param=settings.log_verbose_level),
                "log_format": value(string_param=settings.log_format),
            }
        )


def _trace_changes(given: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str] | None]:
    """An empty list clears a setting."""
    changes: dict[str, Sequence[str] | None] = {}
    for name in _TRACE_SETTINGS:
        if name not in given:
            continue
        values = given[name]
        if name not in ("trace_level", "trace_file") and len(values) > 1:
            raise InvalidArgument(f"expect only 1 value for '{name}'")
        changes[name] = tuple(values) or None
    return changes


def _changed(settings: LogSettings, given: Mapping[str, pb.LogSettingsRequestSettingValue]) -> LogSettings:
    if "log_file" in given:
        raise Unsupported("log file location can not be updated through network protocol")
    changes: dict[str, bool | int | str] = {}
    for name, (kind, word) in _LOG_KINDS.items():
        if name not in given:
            continue
        value: bool | int | str | None = getattr(given[name], kind)
        if value is None:
            raise InvalidArgument(f"expect {word} for '{name}'")
        changes[name] = value
    return dataclasses.replace(settings, **changes)  # type: ignore[arg-type]  # _LOG_KINDS says which type is whose
