"""Logging in Triton's two line formats, on the standard library's logging.

Every module logs to the logger of its own name. Only a process that is a server (the command line) calls `logging_to`;
a `trioton.server.Server` inside another program leaves that program's logging alone. What clients change over the
protocols comes through a `ServerLog`. Source: Triton, "Logging": info goes to stdout, warnings and errors to stderr,
with a log file everything goes there; times are UTC; messages are quoted and escaped as JSON strings, so that none can
forge a line, but for tables.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from protocol.errors import InvalidArgument, Unsupported
from protocol.server_settings import LOG_FORMATS, LogSettings
from trioton.settings import Settings

# The packages whose loggers follow the log flags; what others log shows from level warning on.
PACKAGES = ("actors", "backends", "protocol", "repository", "trioton")
# What gRPC can carry.
_LARGEST_VERBOSITY = 2**32 - 1
# For `extra`: the message is shown as it is, below its line. For our own text only, such as tables.
VERBATIM = {"verbatim": True}


def verbose_level(verbosity: int) -> int:
    """The logging level of verbose messages: DEBUG for 1, and one less for each step."""
    return max(1, logging.DEBUG + 1 - verbosity)


class TritonFormatter(logging.Formatter):
    """`LMMDD hh:mm:ss.uuuuuu <pid> <file>:<line>] <message>`, or in ISO8601
    `YYYY-MM-DDThh:mm:ssZ L <pid> <file>:<line>] <message>`; L is one of I, W, E."""

    def __init__(self, layout: str, *, escape: bool = True) -> None:
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
    """Lets through the levels that the settings switch on; verbose messages depend on the verbose level alone."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self.settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        settings = self.settings
        if record.levelno >= logging.ERROR:
            return settings.log_error
        if record.levelno >= logging.WARNING:
            return settings.log_warning
        if record.levelno >= logging.INFO:
            return settings.log_info
        verbosity = settings.log_verbose_level
        return verbosity > 0 and record.levelno >= verbose_level(verbosity)


class ServerLog:
    """Implements `protocol.server_settings.LogControl` for the process's log, while that goes `to` somewhere.

    Before and after, and so for a server inside another program that does not call `logging_to`, changes are checked
    and remembered, but move nothing: the log is the program's.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = LogSettings(
            log_file=settings.log_file,
            log_info=settings.log_info,
            log_warning=settings.log_warning,
            log_error=settings.log_error,
            log_verbose_level=settings.log_verbose,
            log_format=settings.log_format,
        )
        self._escape = settings.log_escape
        self._filter = LevelFilter(self._settings)
        self._handlers: Sequence[logging.Handler] = ()

    @property
    def settings(self) -> LogSettings:
        return self._settings

    def update(self, settings: LogSettings) -> None:
        if settings.log_file != self._settings.log_file:
            raise Unsupported("log file location can not be updated through network protocol")
        if settings.log_format not in LOG_FORMATS:
            raise InvalidArgument(f"invalid argument for --log_format, got: {settings.log_format}")
        if not 0 <= settings.log_verbose_level <= _LARGEST_VERBOSITY:
            raise InvalidArgument(
                f"log_verbose_level must be from 0 to {_LARGEST_VERBOSITY}, got: {settings.log_verbose_level}"
            )
        self._settings = self._filter.settings = settings
        self._apply()

    @contextmanager
    def to(self, handlers: Sequence[logging.Handler]) -> Iterator[None]:
        """Send the process's log to these, and put everything back at the end; they are closed then."""
        root = logging.getLogger()
        ours = [logging.getLogger(name) for name in PACKAGES]
        levels = [logger.level for logger in ours]
        self._handlers = handlers
        self._apply()
        for handler in handlers:
            handler.addFilter(self._filter)
            root.addHandler(handler)
        try:
            yield
        finally:
            self._handlers = ()
            for handler in handlers:
                root.removeHandler(handler)
                handler.close()
            for logger, level in zip(ours, levels, strict=True):
                logger.setLevel(level)

    def _apply(self) -> None:
        if not self._handlers:
            return
        formatter = TritonFormatter(self._settings.log_format, escape=self._escape)
        for handler in self._handlers:
            handler.setFormatter(formatter)
        verbosity = self._settings.log_verbose_level
        for name in PACKAGES:  # what no handler lets through should not cost a record
            logging.getLogger(name).setLevel(verbose_level(verbosity) if verbosity else logging.INFO)


@contextmanager
def logging_to(settings: Settings) -> Iterator[ServerLog]:
    """Send the process's log where the settings say, in Triton's layout, until the end of the block. What it yields
    controls that log, and is for `Server`, so that clients can change its settings.

    Raises:
        OSError: the log file cannot be opened.
    """
    log = ServerLog(settings)
    with log.to(_file_handlers(settings) if settings.log_file else _console_handlers()):
        yield log


def _file_handlers(settings: Settings) -> list[logging.Handler]:
    return [logging.FileHandler(settings.log_file, encoding="utf-8")]


def _console_handlers() -> list[logging.Handler]:
    out, err = logging.StreamHandler(sys.stdout), logging.StreamHandler(sys.stderr)
    out.addFilter(lambda record: record.levelno < logging.WARNING)
    err.setLevel(logging.WARNING)
    return [out, err]
