"""Text machine: the base of the output parsers, a machine of states that read a text from its begin to its end."""

from __future__ import annotations

import re
from collections.abc import Callable

from protocol.text.deltas import Delta
from protocol.text.markers import Markers
from protocol.text.parsers.writer import DeltaWriter

# Characters that are taken, blanks among them, before it is certain what they are.
MAX_OPENING = 2048
_NO_BLANK = re.compile(r"\S")


class TextMachine:
    """Its state is a method that takes what it can of `_text` from `_place` on, and says whether the next may go on.

    What a state leaves untaken is bounded, so each character is read a bounded number of times. `_opening` is what was
    taken without being certain: it is content, if it turns out to be nothing else.
    """

    def __init__(self, writer: DeltaWriter, begin: Callable[[], bool], *markers: str) -> None:
        """`begin` is the first state, `markers` are what ends content."""
        self._writer = writer
        self._state = begin
        self._markers = Markers(*markers)
        self._text = ""
        self._place = 0
        self._opening = ""
        self._has_ended = False

    def push(self, text: str) -> list[Delta]:
        """What is certain with this text."""
        self._text = self._text[self._place :] + text
        self._place = 0
        while self._state():
            pass
        return self._writer.take()

    def finish(self) -> list[Delta]:
        """What was held back, as the text ends here."""
        self._has_ended = True
        deltas = self.push("")
        self._writer.finish()
        return deltas + self._writer.take()

    def _read_content(self) -> bool:
        found = self._take_to_marker(self._markers, self._writer.content)
        if found:
            self._opening = found
            self._begin(found)
        return bool(found)

    def _begin(self, marker: str) -> None:
        """One of the markers was taken: sets the next state."""
        raise NotImplementedError

    def _give_back(self) -> bool:
        """What was taken is content, and so is the next."""
        self._writer.content(self._opening)
        self._opening = ""
        self._state = self._read_content
        return True

    def _go(self, state: Callable[[], bool]) -> bool:
        self._state = state
        return True

    def _wait(self) -> bool:
        """Only blanks have come, where something is expected: waits for it, but not for ever."""
        return (self._has_ended or self._has_waited()) and self._give_back()

    def _has_waited(self) -> bool:
        return len(self._opening) > MAX_OPENING

    def _skip_blanks(self) -> str:
        """Takes blanks. The character that comes next; "" where none has come, or too many blanks."""
        found = _NO_BLANK.search(self._text, self._place)
        end = len(self._text) if found is None else found.start()
        self._opening += self._text[self._place : end]
        self._place = end
        return "" if found is None or self._has_waited() else found[0]

    def _take(self, *expected: str) -> str | None:
        """Takes the one of these that comes next, "" for none of them; None where not enough has come to tell."""
        for each in expected:
            if self._text.startswith(each, self._place):
                self._place += len(each)
                self._opening += each
                return each
        rest = self._text[self._place : self._place + max(map(len, expected))]
        may_come = not self._has_ended and any(each.startswith(rest) for each in expected)
        return None if may_come else ""

    def _take_until(self, ends: re.Pattern[str], limit: int) -> tuple[str, str] | None:
        """Takes the text before one of these ends, and the end; both "" where none comes within so many characters,
        None where not enough has come to tell."""
        found = ends.search(self._text, self._place, self._place + limit)
        if found is None:
            return ("", "") if self._has_ended or len(self._text) - self._place >= limit else None
        before = self._text[self._place : found.start()]
        self._opening += before + found[0]
        self._place = found.end()
        return before, found[0]

    def _take_to_marker(self, markers: Markers, write: Callable[[str], None]) -> str:
        """Writes the text up to the next of these markers, and takes that; "" where none has come."""
        found = markers.search(self._text, self._place)
        if found is not None:
            end = found.start()
        else:
            end = len(self._text) if self._has_ended else markers.certain(self._text, self._place)
        write(self._text[self._place : end])
        self._place = end if found is None else found.end()
        return "" if found is None else found[0]
