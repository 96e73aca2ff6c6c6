"""`pb_utils.Logger`: log messages of a model, sent to the server's log."""

from __future__ import annotations

import enum
import sys
from contextlib import suppress
from types import FrameType

from .arguments import to_text
from .frames import LOG
from .log_records import LONGEST
from .session import session
from .speaker import speaker_of_session


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
    text = to_text(message, "Logger: message")[:LONGEST]
    here = session()
    if level is LogLevel.VERBOSE and (here is None or not here.logs_verbose):
        return
    caller: FrameType = sys._getframe(2)
    filename, line = caller.f_code.co_filename, caller.f_lineno
    speaker = speaker_of_session()
    if speaker is None:
        print(f"{filename}:{line}: {text}", file=sys.stderr)
        return
    with suppress(OSError):  # the server is going, and this process with it
        speaker.connection.send(
            LOG, {"level": int(level), "message": text, "filename": filename, "line": line, "batch": speaker.work}
        )
