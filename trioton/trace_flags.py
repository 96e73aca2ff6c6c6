"""The flags of tracing: `--trace-config [<mode>,]<setting>=<value>`, and the older ones that it replaces.

Source: Triton, "Command-line flags" and "Tracing".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from actors.trace_settings import (
    DEFAULT_URL,
    OFF,
    TENSORS,
    TIMESTAMPS,
    ExportSettings,
    TracerSettings,
    invalid_reason,
)
from protocol.server_settings import TraceSettings
from trioton.flags import UsageError, integer

FORMAT = "--trace-config option format is '<setting>=<value>' or '<mode>,<setting>=<value>'"

_LEVELS = {
    "off": OFF,
    "false": OFF,
    **dict.fromkeys(("on", "true", "min", "max", "timestamps"), TIMESTAMPS),
    "tensors": TENSORS,
}


@dataclass(frozen=True, slots=True)
class TraceOption:
    """One `--trace-config`. An empty `mode` means a setting of every mode."""

    mode: str
    setting: str
    value: str


def trace_level(text: str) -> str:
    level = _LEVELS.get(text.lower())
    if level is None:
        raise ValueError(f"invalid value for trace level option: {text}")
    return level


def trace_mode(text: str) -> str:
    if text not in ("triton", "opentelemetry"):
        raise ValueError(
            f'invalid value for trace mode option: {text}. Available options are "triton" and "opentelemetry"'
        )
    return text


def resource_attribute(text: str) -> str:
    key, equals, _ = text.partition("=")
    if not key or not equals:
        raise ValueError("a resource attribute is given as resource=<key>=<value>")
    return text


trace_rate = integer(0, 2**32 - 1)
trace_count = integer(-1, 2**31 - 1)
trace_log_frequency = integer(0, 2**32 - 1)

_POSITIVE = integer(1, 2**31 - 1)

# What may be set, by mode ("" for all).
_SETTINGS: dict[str, dict[str, Callable[[str], object]]] = {
    "": {"level": trace_level, "rate": trace_rate, "count": trace_count, "mode": trace_mode},
    "triton": {"file": str, "log-frequency": trace_log_frequency},
    "opentelemetry": {
        "url": str,
        "resource": resource_attribute,
        "bsp_max_queue_size": _POSITIVE,
        "bsp_schedule_delay": _POSITIVE,
        "bsp_max_export_batch_size": _POSITIVE,
    },
}


def trace_option(text: str) -> TraceOption:
    head, equals, value = text.partition("=")
    mode, comma, setting = head.partition(",")
    if not comma:
        mode, setting = "", mode
    elif trace_mode(mode) and not setting:
        equals = ""
    if not equals or not setting:
        raise ValueError(FORMAT)
    parse = _SETTINGS[mode].get(setting)
    if parse is None:
        of_mode = f" of mode {mode}" if mode else ""
        raise ValueError(f"there is no trace setting '{setting}'{of_mode}; expected {' or '.join(_SETTINGS[mode])}")
    parse(value)
    return TraceOption(mode, setting, value)


@dataclass(frozen=True, slots=True)
class OldTraceFlags:
    """What the deprecated flags say; None and empty for those that were not given."""

    file: str = ""
    level: Sequence[str] = field(default=())
    rate: int | None = None
    count: int | None = None
    log_frequency: int | None = None


def tracer_settings(options: Sequence[TraceOption], old: OldTraceFlags) -> TracerSettings:
    """What the flags say together; `--trace-config` wins, and of equal options the last, but any level OFF wins.

    Raises:
        UsageError: tracing is asked for, but cannot be.
    """
    given = {(option.mode, option.setting): option.value for option in options}
    levels = [trace_level(option.value) for option in options if (option.mode, option.setting) == ("", "level")]
    levels = levels or list(old.level)

    def number(mode: str, setting: str, parse: Callable[[str], int], fallback: int | None) -> int | None:
        text = given.get((mode, setting))
        return fallback if text is None else parse(text)

    defaults = TraceSettings()
    rate = number("", "rate", trace_rate, old.rate)
    count = number("", "count", trace_count, old.count)
    log_frequency = number("triton", "log-frequency", trace_log_frequency, old.log_frequency)
    start = TraceSettings(
        level=_combined(levels),
        rate=defaults.rate if rate is None else rate,
        count=defaults.count if count is None else count,
        log_frequency=defaults.log_frequency if log_frequency is None else log_frequency,
        file=given.get(("triton", "file"), old.file),
        mode=given.get(("", "mode"), defaults.mode),
    )
    export = ExportSettings(
        url=given.get(("opentelemetry", "url"), DEFAULT_URL),
        resource=dict(
            _attribute(option.value)
            for option in options
            if (option.mode, option.setting) == ("opentelemetry", "resource")
        ),
        bsp_max_queue_size=number("opentelemetry", "bsp_max_queue_size", _POSITIVE, None),
        bsp_schedule_delay=number("opentelemetry", "bsp_schedule_delay", _POSITIVE, None),
        bsp_max_export_batch_size=number("opentelemetry", "bsp_max_export_batch_size", _POSITIVE, None),
    )
    if not start.is_off:
        reason = invalid_reason(start)
        if reason:
            raise UsageError(f"the trace level is {','.join(start.level)}, but {reason}; see --trace-config")
    return TracerSettings(start, export)


def _combined(levels: Sequence[str]) -> tuple[str, ...]:
    if not levels or OFF in levels:
        return (OFF,)
    return tuple(level for level in (TIMESTAMPS, TENSORS) if level in levels)


def _attribute(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value
