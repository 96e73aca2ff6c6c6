"""`Logger`: a model's messages to the server's log."""

from __future__ import annotations

import enum
import os
import sys
from contextlib import suppress
from types import FrameType
from typing import Callable, ClassVar

from .connection import Connection
from .frames import LOG

_LONGEST = 65536  # characters of one message


class LogLevel(enum.IntEnum):
    """Places in `frames.LOG_LEVELS`."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class Logger:
    """May be used from any thread. The server's log shows the file and line of the caller."""

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    # The API has no object to hold it: one connection per process, set before the model is imported.
    _send: ClassVar[Callable[[LogLevel, str, str, int], None] | None] = None

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        _log(message, LogLevel(level))

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


def connect_logger(connection: Connection) -> None:
    """Send what is logged from now on to the server."""
    owner = os.getpid()

    def send(level: LogLevel, message: str, filename: str, line: int) -> None:
        if os.getpid() != owner:  # a forked child has the socket as well, but may not speak on it
            print(f"{filename}:{line}: {message}", file=sys.stderr)
            return
        head = {"level": int(level), "message": message[:_LONGEST], "filename": filename, "line": line}
        with suppress(OSError):  # the server is going, and this process with it
            connection.send(LOG, head)

    Logger._send = staticmethod(send)


def _log(message: str, level: LogLevel) -> None:
    if Logger._send is None:
        return
    caller: FrameType = sys._getframe(2)
    Logger._send(level, str(message), caller.f_code.co_filename, caller.f_lineno)
