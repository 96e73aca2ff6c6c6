"""Worker output: reads stdout and stderr from a pipe into the log, and keeps the last lines for error messages."""

from __future__ import annotations

import logging
import os
from collections import deque
from functools import partial

import trio

from protocol.log.records import WrittenLine
from protocol.log.tags import TaggedLog, Tags, TagsNow
from protocol.reactor.drivers import the_poller
from protocol.reactor.poller import Poller
from protocol.sync.wakeup import Wakeup

logger = logging.getLogger("trioton.backends.python")

_READ_SIZE = 65536
_LAST_READS = 16  # a pipe holds one; others who may still print are not waited for
_LAST_SECONDS = 2.0
_LONGEST_LINE = 8192
_LINES_AT_ONCE = 8  # each takes some tens of microseconds, or more if it is long
TAIL_LINES = 20


class Output:
    """The reading end of a pipe, which it owns. The poller reads it, so that a line comes before the end of the batch
    during which it was written."""

    def __init__(self, descriptor: int, log: TaggedLog, name: str) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._log = log
        self._name = name
        self._line = b""
        self._lines: deque[str] = deque()  # that are read, and not logged yet
        self._tags: Tags = {}  # of these
        self._has_ended = False
        self._was_late = False  # lines had to wait, and others behind them
        self._news = Wakeup()
        self._poller: Poller | None = None  # while it has the pipe in sight
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    def fileno(self) -> int:
        return self._descriptor

    @property
    def tail(self) -> list[str]:
        """The last lines that were printed, oldest first."""
        return [*self._tail, *([_decode(self._line)] if self._line else [])]

    async def forward(self, tags_now: TagsNow) -> None:
        """Log what is printed, line by line, until all who can print are gone, with the tags that there are when it is
        read."""
        while True:
            await self._log_rest()
            if self._has_ended or self._descriptor == -1:
                return
            self._poller = the_poller()
            self._poller.add(self, partial(self._read_and_log, tags_now), self._fail, later=True, first=True)
            try:
                await self._news.wait()
            finally:
                self._look_away()

    async def log_last(self, tags_now: TagsNow) -> None:
        """Log what the pipe still holds of a process that has ended. Shielded, and bounded by some seconds."""
        with trio.move_on_after(_LAST_SECONDS, shield=True) as in_time:
            await self._log_rest()
            for _ in range(_LAST_READS):
                goes_on = self._read(tags_now)
                await self._log_rest()
                if not goes_on:
                    break
        if in_time.cancelled_caught:
            self._log.warning("%s: %d lines or more that it has printed are not logged", self._name, len(self._lines))
            self._lines.clear()

    async def _log_rest(self) -> None:
        while self._log_some():
            await trio.lowlevel.checkpoint()  # a model that prints without end must not stop the others

    def close(self) -> None:
        if self._descriptor != -1:
            self._look_away()
            self._news.wake()
            os.close(self._descriptor)
            self._descriptor = -1

    def _look_away(self) -> None:
        if self._poller is not None:
            self._poller.remove(self)
            self._poller = None

    def _read_and_log(self, tags_now: TagsNow) -> None:
        """Called by the poller. What is too much for it is left to the task."""
        if self._lines or not self._read(tags_now) or self._log_some():
            self._was_late = True
            self._look_away()
            self._news.wake()

    def _fail(self, error: Exception) -> None:
        """What is printed is lost from now on."""
        logger.error("%s: its output cannot be read: %r", self._name, error)
        self._has_ended = True
        self._news.wake()

    def _read(self, tags_now: TagsNow) -> bool:
        """Read once, if there is something. False where nothing will come."""
        try:
            data = os.read(self._descriptor, _READ_SIZE) if self._descriptor != -1 else b""
        except BlockingIOError:
            return True
        *lines, self._line = (self._line + data).split(b"\n")
        if not data or len(self._line) > _LONGEST_LINE:
            lines.append(self._line)
            self._line = b""
        self._has_ended = not data
        for line in map(_decode, lines):
            self._lines.extend(line[start : start + _LONGEST_LINE] for start in range(0, len(line), _LONGEST_LINE))
        tags = tags_now()
        # What has waited may be about another request than that which runs now.
        self._tags = tags if not self._was_late or tags == self._tags else {}
        self._was_late = False
        return bool(data)

    def _log_some(self) -> bool:
        """Log a few of the lines that were read. Whether there are more."""
        is_shown = self._log.isEnabledFor(logging.INFO)
        left = _LINES_AT_ONCE
        while self._lines and left > 0:
            line = self._lines.popleft()
            left -= 1 + (len(line) >> 12)
            self._tail.append(line)
            if is_shown:
                self._log.handle(WrittenLine(logging.INFO, line).record(self._log.logger, self._name), self._tags)
        return bool(self._lines)


def _decode(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "replace")
