"""Flags of the log. Part of `trioton.settings`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from protocol.log.access_log import AccessMode, AccessPolicy
from protocol.server_settings import LOG_FORMATS
from trioton.flags.fields import BOOLEAN, BOOLEANS, INTEGER, PATH, at_least, boolean, choice, flag

LOGGING = "Logging"
# Of requests, from one line to the next.
_MOST_SKIPPED = 10**9

LogFormat: TypeAlias = Literal["default", "ISO8601", "json", "ecs"]


def verbosity(text: str) -> int:
    """A level, or true and false for 1 and 0."""
    value = BOOLEANS.get(text.lower())
    return at_least(0)(text) if value is None else int(value)


def log_format(text: str) -> LogFormat:
    return cast(LogFormat, choice(*LOG_FORMATS)(text))


@dataclass(frozen=True, slots=True)
class AccessLogFlag:
    """`--access-log`: which requests have lines, and the file that these go to, empty for where the log goes."""

    policy: AccessPolicy = AccessPolicy()  # noqa: RUF009 (frozen)
    file: str = ""

    def __str__(self) -> str:
        """As the flag has it."""
        policy = self.policy
        words = [f"sample:{policy.every}" if policy.mode is AccessMode.SAMPLE else policy.mode.value]
        words += [] if policy.slow_ms is None else [f"slow={policy.slow_ms:g}"]
        return ",".join([*words, *([f"file={self.file}"] if self.file else [])])


def access_log(text: str) -> AccessLogFlag:
    """`off`, `errors`, `sample:<n>` or `all`, and behind it `slow=<ms>` and `file=<path>`."""
    word, *parts = text.split(",")
    mode, every = _access_mode(word)
    slow_ms: float | None = None
    file = ""
    for part in parts:
        name, _, value = part.partition("=")
        if name == "slow":
            slow_ms = _milliseconds(value)
        elif name == "file" and value:
            file = value
        else:
            raise ValueError("expected slow=<ms> or file=<path> behind the mode")
    if mode is AccessMode.OFF and parts:
        raise ValueError("'off' stands alone")
    return AccessLogFlag(AccessPolicy(mode, every, slow_ms), file)


def _access_mode(word: str) -> tuple[AccessMode, int]:
    name, has_number, number = word.partition(":")
    if name == "sample" and number.isdecimal() and number.isascii() and 0 < int(number) <= _MOST_SKIPPED:
        return AccessMode.SAMPLE, int(number)
    if not has_number and name in ("off", "errors", "all"):
        return AccessMode(name), 1
    raise ValueError("expected off, errors, sample:<n> with n from 1 on, or all")


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise ValueError("expected milliseconds behind slow=")
    return value


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
    access_log: AccessLogFlag = flag(  # noqa: RUF009 (a field, as its neighbours)
        AccessLogFlag(),
        access_log,
        group=LOGGING,
        metavar="<mode>[,slow=<ms>][,file=<path>]",
        help="One line of JSON for each request that has ended: of all, of one out of n and all failures (sample:<n>), "
        "of failures alone (errors), or of none (off); with slow= also of those that take at least that long. Lines go "
        "where the log goes, or to a file of their own.",
    )
    # No flag, as in Triton: the environment variable TRITON_SERVER_ESCAPE_LOG_MESSAGES sets it.
    log_escape: bool = True
