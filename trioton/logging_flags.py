"""Flags of the log. Part of `trioton.settings`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from protocol.server_settings import LOG_FORMATS
from trioton.flags import BOOLEAN, BOOLEANS, INTEGER, PATH, at_least, boolean, choice, flag

LOGGING = "Logging"

LogFormat: TypeAlias = Literal["default", "ISO8601", "json", "ecs"]


def verbosity(text: str) -> int:
    """A level, or true and false for 1 and 0."""
    value = BOOLEANS.get(text.lower())
    return at_least(0)(text) if value is None else int(value)


def log_format(text: str) -> LogFormat:
    return cast(LogFormat, choice(*LOG_FORMATS)(text))


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class LoggingFlags:
    """The part of the settings that is about the log."""

    log_verbose: int = flag(
        0, verbosity, group=LOGGING, metavar=INTEGER, help="Show verbose messages up to this level; 0 shows none."
    )
    log_info: bool = flag(True, boolean, group=LOGGING, metavar=BOOLEAN, help="Show messages of level info.")
    log_warning: bool = flag(True, boolean, group=LOGGING, metavar=BOOLEAN, help="Show messages of level warning.")
    log_error: bool = flag(True, boolean, group=LOGGING, metavar=BOOLEAN, help="Show messages of level error.")
    log_format: LogFormat = flag(  # noqa: RUF009 (a field, as its neighbours)
        "default",
        log_format,
        group=LOGGING,
        metavar="{default,ISO8601,json,ecs}",
        help="The layout of log lines: Triton's two, or one JSON object a line by OpenTelemetry's log data model (json)"
        " or the Elastic Common Schema (ecs).",
    )
    log_file: str = flag(
        "", str, group=LOGGING, metavar=PATH, help="Append all messages to this file, not to the console."
    )
    # No flag, as in Triton: the environment variable TRITON_SERVER_ESCAPE_LOG_MESSAGES sets it.
    log_escape: bool = True
