"""Log lines in Triton's two layouts, on the standard library's logging.

Every module logs to the logger of its own name. Only a process that is a server (the command line) calls
`logging_to`; a `trioton.server.Server` inside another program leaves that program's logging alone. Source: Triton,
"Logging": info goes to stdout, warnings and errors to stderr, with a log file everything goes there; times are UTC;
messages are quoted and escaped as JSON strings, so that none can forge a line, but for tables.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from trioton.settings import LogFormat, Settings

# The packages whose loggers follow the log flags; what others log shows from level warning on.
PACKAGES = ("actors", "backends", "protocol", "repository", "trioton")
# For `extra`: the message is shown as it is, below its line. For our own text only, such as tables.
VERBATIM = {"verbatim": True}


def verbose_level(verbosity: int) -> int:
    """The logging level of verbose messages: DEBUG for 1, and one less for each step."""
    return max(1, logging.DEBUG + 1 - verbosity)


class TritonFormatter(logging.Formatter):
    """`LMMDD hh:mm:ss.uuuuuu <pid> <file>:<line>] <message>`, or in ISO8601
    `YYYY-MM-DDThh:mm:ssZ L <pid> <file>:<line>] <message>`; L is one of I, W, E."""

    def __init__(self, layout: LogFormat, *, escape: bool = True) -> None:
        super().__init__()
        self._layout = layout
        self._escape = escape

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self._head(record)} {record.process} {record.filename}:{record.lineno}] {self._message(record)}"
        if record.exc_info:
            # Indented, for the same reason as the escapes.
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {part}" for part in trace.splitlines())
        return line

    def _head(self, record: logging.LogRecord) -> str:
        level = "I" if record.levelno < logging.WARNING else "W" if record.levelno < logging.ERROR else "E"
        time = datetime.fromtimestamp(record.created, UTC)
        if self._layout == "ISO8601":
            return f"{time:%Y-%m-%dT%H:%M:%SZ} {level}"
        return f"{level}{time:%m%d %H:%M:%S.%f}"

    def _message(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if getattr(record, "verbatim", False):
            return f"\n{message}"
        # Lone surrogates (from file names) cannot be written.
        message = message.encode("utf-8", "backslashreplace").decode()
        return json.dumps(message, ensure_ascii=False) if self._escape else message


class LevelFilter(logging.Filter):
    """Lets through the levels that the flags switch on; verbose messages depend on `--log-verbose` alone."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        settings = self._settings
        if record.levelno >= logging.ERROR:
            return settings.log_error
        if record.levelno >= logging.WARNING:
            return settings.log_warning
        if record.levelno >= logging.INFO:
            return settings.log_info
        return settings.log_verbose > 0 and record.levelno >= verbose_level(settings.log_verbose)


@contextmanager
def logging_to(settings: Settings) -> Iterator[None]:
    """Send the process's log where the settings say, and put everything back at the end.

    Raises:
        OSError: the log file cannot be opened.
    """
    handlers = _file_handlers(settings) if settings.log_file else _console_handlers()
    formatter = TritonFormatter(settings.log_format, escape=settings.log_escape)
    for handler in handlers:
        handler.setFormatter(formatter)
        handler.addFilter(LevelFilter(settings))
    root = logging.getLogger()
    ours = [logging.getLogger(name) for name in PACKAGES]
    levels = [logger.level for logger in ours]
    for logger in ours:
        logger.setLevel(
            min(logging.INFO, verbose_level(settings.log_verbose)) if settings.log_verbose else logging.INFO
        )
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        for logger, level in zip(ours, levels, strict=True):
            logger.setLevel(level)


def _file_handlers(settings: Settings) -> list[logging.Handler]:
    return [logging.FileHandler(settings.log_file, encoding="utf-8")]


def _console_handlers() -> list[logging.Handler]:
    out, err = logging.StreamHandler(sys.stdout), logging.StreamHandler(sys.stderr)
    out.addFilter(lambda record: record.levelno < logging.WARNING)
    err.setLevel(logging.WARNING)
    return [out, err]
