"""Handler of `logging` that gives its lines to a writer's thread."""

from __future__ import annotations

import logging
from collections import Counter

from trioton.log.writer import LogWriter


class WriterHandler(logging.Handler):
    """Formats in the thread that logs, where the values are what they are at that moment. Owns the writer, and counts
    what it was given."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self.writer = writer
        # By `logging`'s level of the record.
        self.counts: Counter[int] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.counts[record.levelno] += 1
        try:
            self.writer.put(f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        super().close()
        self.writer.close()
