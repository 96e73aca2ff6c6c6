"""Output of a converting process as lines for the log: progress bars are thinned out, and the last lines kept. Pure."""

from __future__ import annotations

import re
from collections import deque

# A bar is rewritten many times a second; this often, in seconds, it is worth a line.
BAR_SECONDS = 5.0
_LONGEST_LINE = 1000
_KEPT_LINES = 12
_ENDS = re.compile(r"[\r\n]")


class Progress:
    """Attributes:
    last: the last lines, without bars.
    """

    def __init__(self) -> None:
        self.last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._rest = ""
        self._bar_at = float("-inf")

    def feed(self, data: bytes | bytearray, now: float) -> list[str]:
        """The lines that are to be logged. A part of a line waits for its end."""
        text = self._rest + data.decode("utf-8", "replace")
        lines = []
        start = 0
        for match in _ENDS.finditer(text):
            line, start = text[start : match.start()].strip()[:_LONGEST_LINE], match.end()
            if line and self._is_shown(line, is_bar=match[0] == "\r", now=now):
                lines.append(line)
        self._rest = text[start:][-_LONGEST_LINE:]
        return lines

    def end(self) -> list[str]:
        """What is left when the output has ended."""
        return self.feed(b"\n", 0.0)

    def _is_shown(self, line: str, *, is_bar: bool, now: float) -> bool:
        if not is_bar:
            self.last.append(line)
            return True
        if now < self._bar_at + BAR_SECONDS:
            return False
        self._bar_at = now
        return True
