"""The `date` header (RFC 9110, 6.6.1), formatted once per second."""

from __future__ import annotations

import time
from email.utils import formatdate


class DateHeader:
    """One for each listener."""

    __slots__ = ("_line", "_next_second", "_packed", "_second")

    def __init__(self) -> None:
        # That of which the lines are, and the one after it.
        self._second = 0
        self._next_second = 0
        self._line = b""
        self._packed = b""

    def line(self) -> bytes:
        """The header and the empty line behind it, which ends a head."""
        now = time.time()
        if not self._second <= now < self._next_second:
            self._make(int(now))
        return self._line

    def packed(self) -> bytes:
        """The value as a string of HPACK (RFC 7541, 5.2)."""
        now = time.time()
        if not self._second <= now < self._next_second:
            self._make(int(now))
        return self._packed

    def _make(self, now: int) -> None:
        value = formatdate(now, usegmt=True).encode("ascii")
        self._second, self._next_second = now, now + 1
        self._line = b"date: %b\r\n\r\n" % value
        self._packed = bytes((len(value),)) + value
