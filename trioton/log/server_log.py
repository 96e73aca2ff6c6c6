"""The log of the process, on the standard library's logging: its levels, its format, and what clients change of it.

Every module logs to the logger of its own name. Only a process that is a server (the command line) calls `logging_to`;
a `trioton.server.Server` inside another program leaves that program's logging alone. What clients change over the
protocols comes through a `ServerLog`. Source: Triton, "Logging": info goes to stdout, warnings and errors to stderr,
with a log file everything goes there; times are UTC; messages are quoted and escaped as JSON strings, so that none can
forge a line, but for tables. Lines are written by threads (`trioton.log.writer`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from protocol.errors import InvalidArgument, Unsupported
from protocol.server_settings import LOG_FORMATS, LogSettings
from trioton.log.formats import make_formatter
from trioton.log.handler import WriterHandler
from trioton.log.places import LogFile, LogStream, is_same_file
from trioton.log.writer import LogWriter
from trioton.settings import Settings

# The packages whose loggers follow the log flags; what others log shows from level warning on.
PACKAGES = ("actors", "backends", "protocol", "repository", "trioton")
# What gRPC can carry.
_LARGEST_VERBOSITY = 2**32 - 1


def verbose_level(verbosity: int) -> int:
    """The logging level of verbose messages: DEBUG for 1, and one less for each step."""
    return max(1, logging.DEBUG + 1 - verbosity)


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
        self._service = settings.id
        self._filter = LevelFilter(self._settings)
        self._handlers: Sequence[logging.Handler] = ()
        self.writers: tuple[LogWriter, ...] = ()

    def reopen(self) -> None:
        """Go on in the file that is there now under the log's name."""
        for writer in self.writers:
            writer.reopen()

    @property
    def lost(self) -> int:
        """How many lines could not be written."""
        return sum(writer.lost for writer in self.writers)

    def events(self) -> Mapping[str, int]:
        """How many events were logged, by level: "verbose", "info", "warning" and "error"."""
        found = dict.fromkeys(("verbose", "info", "warning", "error"), 0)
        for handler in self._handlers:
            for level, count in handler.counts.copy().items() if isinstance(handler, WriterHandler) else ():
                found[_level_name(level)] += count
        return found

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
        self.writers = tuple(each.writer for each in handlers if isinstance(each, WriterHandler))
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
        formatter = make_formatter(self._settings.log_format, service=self._service, escape=self._escape)
        for handler in self._handlers:
            handler.setFormatter(formatter)
        verbosity = self._settings.log_verbose_level
        for name in PACKAGES:  # what no handler lets through should not cost a record
            logging.getLogger(name).setLevel(verbose_level(verbosity) if verbosity else logging.INFO)


def _level_name(level: int) -> str:
    if level >= logging.ERROR:
        return "error"
    return "warning" if level >= logging.WARNING else "info" if level >= logging.INFO else "verbose"


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
    return [WriterHandler(LogWriter(LogFile(settings.log_file), "server"))]


def _console_handlers() -> list[logging.Handler]:
    if is_same_file(sys.stdout, sys.stderr):  # by one thread, which keeps the order of lines
        return [WriterHandler(LogWriter(LogStream(sys.stdout), "server"))]
    out, err = (WriterHandler(LogWriter(LogStream(stream), "server")) for stream in (sys.stdout, sys.stderr))
    out.addFilter(lambda record: record.levelno < logging.WARNING)
    err.setLevel(logging.WARNING)
    return [out, err]
