"""`pb_utils.Logger`: log messages of a model, sent to the server's log."""

from __future__ import annotations

import enum
import logging
import sys
from contextlib import suppress
from types import FrameType

from .arguments import to_text
from .connection import Head
from .frames import LOG
from .session import Session, session

_LONGEST = 65536  # characters of one message


class LogLevel(enum.IntEnum):
    """Places in `frames.LOG_LEVELS`."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class Logger:
    """May be used from any thread. The server's log shows the file and line of the caller; its settings decide what is
    shown."""

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        if not isinstance(level, LogLevel):
            raise TypeError(f"Logger.log: level must be one of Logger's levels, found type {type(level)}")
        _log(message, level)

    @staticmethod
    def log_info(message: str) -> None:
        _log(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        _log(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        _log(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        _log(message, LogLevel.VERBOSE)


def _log(message: str, level: LogLevel) -> None:
    text = to_text(message, "Logger: message")[:_LONGEST]
    here = session()
    if level is LogLevel.VERBOSE and (here is None or not here.logs_verbose):
        return
    caller: FrameType = sys._getframe(2)
    filename, line = caller.f_code.co_filename, caller.f_lineno
    if (
        here is None or not here.connection.is_usable
    ):  # in a unit test, a fork server, or a process that the model forked
        print(f"{filename}:{line}: {text}", file=sys.stderr)
        return
    with suppress(OSError):  # the server is going, and this process with it
        here.connection.send(LOG, _head(here, level, text, filename, line))


def _head(here: Session, level: LogLevel, text: str, filename: str, line: int) -> Head:
    batch = here.calling_batch()
    number = 0 if batch is None else batch.number
    return {"level": int(level), "message": text, "filename": filename, "line": line, "batch": number}


def log_unhandled() -> None:
    """Have warnings and errors that a model logs by `logging`, without a handler for them, go where those of `Logger`
    go. What it has handlers for is written by them."""
    logging.lastResort = _LastResort(logging.WARNING)


class _LastResort(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        here = session()
        if here is None or not here.connection.is_usable:
            print(self.format(record), file=sys.stderr)
            return
        level = LogLevel.ERROR if record.levelno >= logging.ERROR else LogLevel.WARNING
        text = self.format(record)[:_LONGEST]
        # Not `send`: a library may log while a frame is sent.
        here.connection.send_from_anywhere(LOG, _head(here, level, text, record.pathname, record.lineno))
