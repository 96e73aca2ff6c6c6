"""Handler of `logging` that gives its lines to a writer's thread."""

from __future__ import annotations

import logging

from trioton.log.writer import LogWriter


class WriterHandler(logging.Handler):
    """Formats in the thread that logs, where the values are what they are at that moment. Owns the writer."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self.writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.writer.put(f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        super().close()
        self.writer.close()
