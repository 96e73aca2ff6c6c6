"""Worker output: reads stdout and stderr from a pipe into the log, and keeps the last lines for error messages."""

from __future__ import annotations

import os
from collections import deque

import trio

from protocol.log.tags import Log

_READ_SIZE = 65536
_LAST_READS = 16  # a pipe holds one; others who may still print are not waited for
_LONGEST_LINE = 8192
TAIL_LINES = 20


class Output:
    """The reading end of a pipe, which it owns."""

    def __init__(self, descriptor: int, log: Log, name: str) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._log = log
        self._name = name
        self._line = b""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def tail(self) -> list[str]:
        """The last lines that were printed, oldest first."""
        return [*self._tail, *([_decode(self._line)] if self._line else [])]

    async def forward(self) -> None:
        """Log what is printed, line by line, until all who can print are gone."""
        while (size := self._log_some()) != 0:
            if size is None:
                await trio.lowlevel.wait_readable(self._descriptor)
            else:
                await trio.lowlevel.checkpoint()  # a model that prints without end must not stop the others

    def log_last(self) -> None:
        """Log what the pipe still holds of a process that has ended."""
        for _ in range(_LAST_READS):
            if not self._log_some():
                break

    def close(self) -> None:
        if self._descriptor != -1:
            trio.lowlevel.notify_closing(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _log_some(self) -> int | None:
        """Read once and log. Returns the number of bytes: None where there are none now, 0 where none will come."""
        if self._descriptor == -1:
            return 0
        try:
            data = os.read(self._descriptor, _READ_SIZE)
        except BlockingIOError:
            return None
        *lines, self._line = (self._line + data).split(b"\n")
        if not data or len(self._line) > _LONGEST_LINE:
            lines.append(self._line)
            self._line = b""
        for line in filter(None, map(_decode, lines)):
            self._tail.append(line)
            self._log.info("%s: %s", self._name, line, extra={"body": line})
        return len(data)


def _decode(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "replace")
