"""Where the access log's lines go: a file of their own, or where the server's log goes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from protocol.log.access_log import AccessLog
from trioton.flags.logging import AccessLogFlag
from trioton.log.places import LogFile, LogStream
from trioton.log.writer import CLOSE_SECONDS, LogWriter


class AccessWriter:
    """The access log of one server, between `open` and `close`; lines of any other time are dropped."""

    def __init__(self, flag: AccessLogFlag) -> None:
        self._flag = flag
        self._writer: LogWriter | None = None
        self._owns = False
        self.log = AccessLog(flag.policy, self._put)

    @property
    def lost(self) -> int | None:
        """How many lines were lost; None where they count as those of the server's log, or there are none."""
        return self._writer.lost if self._owns and self._writer is not None else None

    def open(self, log: Sequence[LogWriter]) -> None:
        """Begin to write; `log` are the writers of the server's log, the first one for lines that are no trouble.

        Raises:
            OSError: the file cannot be opened.
        """
        if not self.log.is_on:
            return
        if self._flag.file:
            self._writer, self._owns = LogWriter(LogFile(self._flag.file), "access"), True
        elif log:
            self._writer = log[0]
        else:
            self._writer, self._owns = LogWriter(LogStream(sys.stdout), "access"), True

    def put_lines(self, lines: bytes, lost: int) -> None:
        """Write lines of another process, which has lost some before them. Never waits."""
        writer = self._writer
        if writer is not None:
            writer.note_lost(lost)
            for line in lines.splitlines(keepends=True):
                writer.put(line)

    def reopen(self) -> None:
        """Go on in the file that is there now under the log's name."""
        if self._writer is not None:
            self._writer.reopen()

    def close(self) -> None:
        """Write what is left. Blocks, for `CLOSE_SECONDS` at most."""
        if self._owns and self._writer is not None:
            self._writer.close(CLOSE_SECONDS)

    def _put(self, line: bytes) -> None:
        if self._writer is not None:
            self._writer.put(line)
