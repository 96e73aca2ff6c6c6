"""Log records of lines that another process has written, which bring with them what was known of them there.

Such a record has the attributes `body`, the text alone, `severity`, which may be finer than its level, `exception`, and
`logger_name`, if there was a logger.
"""

from __future__ import annotations

import logging
import traceback
from typing import NamedTuple


class LoggedException(NamedTuple):
    """What a line tells of, as text."""

    type: str
    message: str
    stacktrace: str


class WrittenLine(NamedTuple):
    """A line as its writer has written it. `level` is that of the log, and says whether it is shown; `severity` is the
    writer's own, 0 where that is the same; `logger` is the name of a logger there."""

    level: int
    text: str
    filename: str = ""
    line: int = 0
    logger: str = ""
    severity: int = 0
    exception: LoggedException | None = None

    def record(self, logger: logging.Logger, name: str) -> logging.LogRecord:
        """For a logger of this process; people are shown the `name` of what has written it."""
        place = logger.name, self.level, self.filename, self.line
        record = logger.makeRecord(*place, "%s: %s", (name, self.text), None)
        vars(record).update(body=self.text, severity=self.severity or self.level, exception=self.exception)
        if self.logger:
            record.logger_name = self.logger
        return record


def severity_of(record: logging.LogRecord) -> int:
    """By the numbers of the standard library."""
    severity: int = getattr(record, "severity", record.levelno)
    return severity


def exception_of(record: logging.LogRecord) -> LoggedException | None:
    """What the line tells of, raised in this process or in another one."""
    if record.exc_info and record.exc_info[0] is not None:
        kind, error, _ = record.exc_info
        stacktrace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        return LoggedException(kind.__name__, str(error), stacktrace)
    found: LoggedException | None = getattr(record, "exception", None)
    return found
