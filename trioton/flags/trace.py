"""Flags of tracing: `--trace-config [<mode>,]<setting>=<value>`, and the deprecated flags that it replaces. Part of
`trioton.settings`.

Source: Triton, "Command-line flags" and "Tracing".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from actors.tracing.settings import (
    OFF,
    TENSORS,
    TIMESTAMPS,
    ExportSettings,
    TracerSettings,
    invalid_reason,
)
from protocol.server_settings import TraceSettings
from trioton.flags.fields import INTEGER, PATH, UsageError, flag, integer, repeatable

TRACING = "Tracing"

FORMAT = "--trace-config option format is '<setting>=<value>' or '<mode>,<setting>=<value>'"

_LEVELS = {
    "off": OFF,
    "false": OFF,
    **dict.fromkeys(("on", "true", "min", "max", "timestamps"), TIMESTAMPS),
    "tensors": TENSORS,
}


@dataclass(frozen=True, slots=True)
class TraceOption:
    """One `--trace-config`, or what an older flag says. An empty `mode` means a setting of every mode."""

    mode: str
    setting: str
    value: str | int


def trace_level(text: str) -> str:
    level = _LEVELS.get(text.lower())
    if level is None:
        raise ValueError(f"invalid value for trace level option: {text}")
    return level


def trace_mode(text: str) -> str:
    mode = text.lower()
    if mode not in ("triton", "opentelemetry"):
        raise ValueError(
            f'invalid value for trace mode option: {text}. Available options are "triton" and "opentelemetry"'
        )
    return mode


def _resource_attribute(text: str) -> str:
    key, equals, _ = text.partition("=")
    if not key or not equals:
        raise ValueError("a resource attribute is given as resource=<key>=<value>")
    return text


trace_rate = integer(0, 2**32 - 1)
trace_count = integer(-1, 2**31 - 1)
trace_log_frequency = integer(0, 2**32 - 1)

_POSITIVE = integer(1, 2**31 - 1)

# What may be set, by mode ("" for all).
_SETTINGS: dict[str, dict[str, Callable[[str], str | int]]] = {
    "": {"level": trace_level, "rate": trace_rate, "count": trace_count, "mode": trace_mode},
    "triton": {"file": str, "log-frequency": trace_log_frequency},
    "opentelemetry": {
        "url": str,
        "resource": _resource_attribute,
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
    else:
        mode = trace_mode(mode)
    if not equals or not setting:
        raise ValueError(FORMAT)
    parse = _SETTINGS[mode].get(setting)
    if parse is None:
        of_mode = f" of mode {mode}" if mode else ""
        raise ValueError(f"there is no trace setting '{setting}'{of_mode}; expected {' or '.join(_SETTINGS[mode])}")
    return TraceOption(mode, setting, parse(value))


# The fields of `TraceSettings` that are set so; the level is put together from several options.
_FIELDS = {
    ("", "rate"): "rate",
    ("", "count"): "count",
    ("", "mode"): "mode",
    ("triton", "file"): "file",
    ("triton", "log-frequency"): "log_frequency",
}


def tracer_settings(options: Iterable[TraceOption]) -> TracerSettings:
    """What the options say together: of equal ones the last, levels add up, but any level OFF wins.

    Raises:
        UsageError: tracing is asked for, but cannot be.
    """
    given: dict[tuple[str, str], Any] = {}
    levels: set[Any] = set()
    resource: dict[str, str] = {}
    for option in options:
        if option.setting == "level":
            levels.add(option.value)
        elif option.setting == "resource":
            key, _, value = str(option.value).partition("=")
            resource[key] = value
        else:
            given[option.mode, option.setting] = option.value
    start = TraceSettings(
        level=(OFF,)
        if OFF in levels or not levels
        else tuple(each for each in (TIMESTAMPS, TENSORS) if each in levels),
        **{_FIELDS[key]: value for key, value in given.items() if key in _FIELDS},
    )
    export = ExportSettings(
        resource=resource,
        **{setting: value for (mode, setting), value in given.items() if mode == "opentelemetry"},
    )
    if not start.is_off and invalid_reason(start):
        raise UsageError(f"the trace level is {','.join(start.level)}, but {invalid_reason(start)}; see --trace-config")
    return TracerSettings(start, export)


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class TraceFlags:
    """The part of the settings that is about tracing."""

    trace_config: tuple[TraceOption, ...] = repeatable(
        trace_option,
        group=TRACING,
        metavar="[<mode>,]<setting>=<value>",
        help="A setting of tracing. May be given several times. For all modes: level (off, timestamps, tensors), rate, "
        "count, mode (triton, opentelemetry). For triton: file, log-frequency. For opentelemetry: url, "
        "resource=<key>=<value>, bsp_max_queue_size, bsp_schedule_delay, bsp_max_export_batch_size.",
    )
    trace_file: str = flag("", str, group=TRACING, metavar=PATH, help="Deprecated: --trace-config triton,file=<path>.")
    trace_level: tuple[str, ...] = repeatable(
        trace_level, group=TRACING, metavar="<level>", help="Deprecated: --trace-config level=<level>."
    )
    trace_rate: int | None = flag(
        None, trace_rate, group=TRACING, metavar=INTEGER, help="Deprecated: --trace-config rate=<integer>."
    )
    trace_count: int | None = flag(
        None, trace_count, group=TRACING, metavar=INTEGER, help="Deprecated: --trace-config count=<integer>."
    )
    trace_log_frequency: int | None = flag(
        None,
        trace_log_frequency,
        group=TRACING,
        metavar=INTEGER,
        help="Deprecated: --trace-config triton,log-frequency=<integer>.",
    )

    def tracing(self) -> TracerSettings:
        """What all the trace flags say together; `--trace-config` wins over the older ones.

        Raises:
            UsageError: tracing is asked for, but cannot be.
        """
        older = {
            ("", "rate"): self.trace_rate,
            ("", "count"): self.trace_count,
            ("triton", "log-frequency"): self.trace_log_frequency,
            ("triton", "file"): self.trace_file or None,
        }
        return tracer_settings(
            [
                *(TraceOption("", "level", level) for level in self.trace_level),
                *(TraceOption(*key, value) for key, value in older.items() if value is not None),
                *self.trace_config,
            ]
        )
