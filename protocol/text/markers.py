"""Markers: fixed strings that divide a stream of text, found wherever the stream was cut. Pure."""

from __future__ import annotations

import re


class Markers:
    """Some markers, none of which is a part of another."""

    def __init__(self, *markers: str) -> None:
        self._markers = markers
        self._longest = max(map(len, markers))
        self._any = re.compile("|".join(map(re.escape, markers)))
        self._first = re.compile(f"[{re.escape(''.join(sorted({marker[0] for marker in markers})))}]")

    def search(self, text: str, place: int) -> re.Match[str] | None:
        """The first marker in the text from `place` on."""
        return self._any.search(text, place)

    def certain(self, text: str, place: int) -> int:
        """Up to where a text without a marker has none, whatever follows: its end may be the begin of one."""
        start = max(place, len(text) - self._longest + 1)
        while (found := self._first.search(text, start)) is not None:
            start = found.start()
            end = text[start:]
            if any(marker.startswith(end) for marker in self._markers):
                return start
            start += 1
        return len(text)
