"""The last failed requests and the last lines of the log, each in a ring with a bound.

`LogTail` is a handler of the standard library's logging, called in whichever thread logs; `RecentErrors` is called by
the edges' failure log.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from protocol.console.records import LONGEST_NAME, ErrorRow, LogRow, cut
from protocol.errors import ServerError, text_of
from protocol.log.failure_log import FailedRequest
from protocol.log.records import exception_of

MOST_ERRORS = 500
MOST_LINES = 1000
_VERBOSE = "VERBOSE"


class RecentErrors:
    """Kept for each request that fails while there is a console: no more than a few texts, cut."""

    def __init__(self) -> None:
        self._rows: deque[ErrorRow] = deque(maxlen=MOST_ERRORS)
        self._number = 0

    def note(self, call: str, status: object, error: Exception, describe: Callable[[], FailedRequest]) -> None:
        failed = describe()
        self.add(call, status, kind_and_text(error), failed.model_name, failed.model_version, failed.id)

    def add(
        self, call: str, status: object, kind_and_text: tuple[str, str], model: str, version: str, own_id: str
    ) -> None:
        """As `note`, of what is known of the request, and of the error."""
        kind, text = kind_and_text
        self._number += 1
        row = ErrorRow(
            number=self._number,
            time=round(time.time(), 3),
            call=cut(call, LONGEST_NAME),
            status=str(status),
            kind=kind,
            text=cut(text),
            model=cut(model, LONGEST_NAME),
            version=cut(version, LONGEST_NAME),
            id=cut(own_id, LONGEST_NAME),
        )
        self._rows.append(row)

    def after(self, number: int) -> Sequence[ErrorRow]:
        return [row for row in self._rows if row.number > number]


def kind_and_text(error: Exception) -> tuple[str, str]:
    """Of an error that a request was answered with."""
    return (error.kind, error.message) if isinstance(error, ServerError) else ("INTERNAL", text_of(error))


class LogTail(logging.Handler):
    """What the loggers that it is added to let through, whatever their other handlers show."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: deque[LogRow] = deque(maxlen=MOST_LINES)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """The handler's own lock is held."""
        try:
            text = record.getMessage()
            if (exception := exception_of(record)) is not None:
                text = f"{text}\n{exception.stacktrace}"
            level = record.levelname if record.levelno >= logging.INFO else _VERBOSE
            self._number += 1
            self._rows.append(LogRow(self._number, round(record.created, 3), level, record.name, cut(text)))
        except Exception:
            self.handleError(record)

    def after(self, number: int) -> Sequence[LogRow]:
        with self.lock:  # type: ignore[union-attr]  # made by the base class
            return [row for row in self._rows if row.number > number]
