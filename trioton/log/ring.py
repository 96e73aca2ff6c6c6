"""Line ring: the lines that wait for a log's writer, within a bound of bytes; those beyond it are counted, not kept.

Used by any thread. Plain, and without I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence


class LineRing:
    """`lost` are the lines that found no room, or were given up, since the beginning."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._size = 0
        self._is_awaited = False
        self.lost = 0

    def put(self, line: bytes) -> bool:
        """Keep a line, if there is room for it. Returns whether somebody waits for the first one, and is to be
        woken."""
        with self._lock:
            if self._size + len(line) > self._most_bytes:
                self.lost += 1
                return False
            self._lines.append(line)
            self._size += len(line)
            is_awaited, self._is_awaited = self._is_awaited, False
            return is_awaited

    def take(self) -> Sequence[bytes]:
        """All lines, in their order. Where there are none, the next `put` says that somebody waits."""
        with self._lock:
            lines, self._lines = self._lines, []
            self._size = 0
            self._is_awaited = not lines
            return lines

    def give_up(self, lines: int) -> None:
        """So many that were taken could not be written."""
        with self._lock:
            self.lost += lines

    def close(self) -> None:
        """Whatever waits, and comes from now on, is lost."""
        with self._lock:
            self.lost += len(self._lines)
            self._lines = []
            self._most_bytes = -1
