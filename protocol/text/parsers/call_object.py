"""Tool call as a JSON object, `{"name": …, "arguments": {…}}`, read as it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from protocol.text.json_scanner import JsonValue
from protocol.text.parsers.writer import DeltaWriter

# Characters that are read before it is certain that they are a call; beyond them they are not.
MAX_HELD = 1 << 16
_ARGUMENTS = ("arguments", "parameters")
_NO_BLANK = re.compile(r"\S")

_State = Callable[[str, int, int], int]


class CallObject:
    """Reads one object, and writes a call once its name and the begin of its arguments are known.

    Arguments are written as they come, as the text that they are. Other keys are read and dropped.

    Attributes:
        is_started: a call is written. The object cannot be given back as content then.
        is_done: the object is whole, and was a call.
        is_failed: the next character cannot belong to a call, or `MAX_HELD` is reached.
    """

    def __init__(self, writer: DeltaWriter, *, is_certain: bool) -> None:
        """`is_certain`: a marker has said that this is a call. Else it is one only with an object of arguments."""
        self.is_started = False
        self.is_done = False
        self.is_failed = False
        self._writer = writer
        self._is_certain = is_certain
        self._held: list[str] = []
        self._room = MAX_HELD
        self._state: _State = self._read_open
        self._value = JsonValue()
        self._raw: list[str] = []  # of the key, or of the value of `name`
        self._key = ""
        self._name = ""
        self._has_arguments = False
        self._early: list[str] = []  # arguments that came before the name

    @property
    def held(self) -> str:
        """What was read while there is no call yet."""
        return "".join(self._held)

    def feed(self, text: str, place: int) -> int:
        """Reads on from `place`, and gives the place up to which it has read."""
        while place < len(text) and not (self.is_done or self.is_failed):
            if self.is_started:
                place = self._state(text, place, len(text))
            elif self._room:
                read = self._state(text, place, min(len(text), place + self._room))
                self._held.append(text[place:read])
                self._room -= read - place
                place = read
            else:
                self.is_failed = True
        return place

    def _read_open(self, text: str, place: int, end: int) -> int:
        place, found = self._take("{", text, place, end)
        if found:
            self._state = self._read_first_key
        return place

    def _read_first_key(self, text: str, place: int, end: int) -> int:
        return self._read_key('"}', text, place, end)

    def _read_next_key(self, text: str, place: int, end: int) -> int:
        return self._read_key('"', text, place, end)

    def _read_key(self, expected: str, text: str, place: int, end: int) -> int:
        place, found = self._take(expected, text, place, end)
        if found == "}":
            self._close()
        elif found:
            self._begin_value(self._read_key_string)
            self._raw.append(found)
            self._value.feed(found, 0, 1)
        return place

    def _read_key_string(self, text: str, place: int, end: int) -> int:
        place = self._collect(text, place, end)
        if self._value.is_done:
            self._key = "" if self.is_started else self._collected()
            self._state = self._read_colon
        return place

    def _read_colon(self, text: str, place: int, end: int) -> int:
        place, found = self._take(":", text, place, end)
        if found:
            self._state = self._read_blank
        return place

    def _read_blank(self, text: str, place: int, end: int) -> int:
        """Finds the begin of the key's value."""
        found = _NO_BLANK.search(text, place, end)
        if found is None:
            return end
        if self._key in _ARGUMENTS and not self._has_arguments:
            self._has_arguments = True
            self._begin_value(self._read_arguments)
            self.is_failed = not self._is_certain and found[0] != "{"
        elif self._key == "name" and not self._name:
            self._begin_value(self._read_name)
            self.is_failed = found[0] != '"'
        else:
            self._begin_value(self._read_other)
        return found.start()

    def _read_name(self, text: str, place: int, end: int) -> int:
        place = self._collect(text, place, end)
        if self._value.is_done:
            self._name = self._collected()
            self.is_failed |= not self._name
            self._state = self._read_comma
            if self._early and not self.is_failed:
                self._start("".join(self._early))
        return place

    def _read_arguments(self, text: str, place: int, end: int) -> int:
        read = self._value.feed(text, place, end)
        if not self._name:
            self._early.append(text[place:read])
        elif read > place:
            self._start(text[place:read])
        return self._after_value(read)

    def _read_other(self, text: str, place: int, end: int) -> int:
        return self._after_value(self._value.feed(text, place, end))

    def _read_comma(self, text: str, place: int, end: int) -> int:
        place, found = self._take(",}", text, place, end)
        if found == "}":
            self._close()
        elif found:
            self._state = self._read_next_key
        return place

    def _begin_value(self, state: _State) -> None:
        self._state = state
        self._value = JsonValue()
        self._raw = []

    def _after_value(self, place: int) -> int:
        if self._value.is_done:
            self._state = self._read_comma
        self.is_failed = self._value.is_broken
        return place

    def _close(self) -> None:
        if self._name and self._is_certain and not self._has_arguments:
            self._start("{}")
        self.is_done = self.is_started
        self.is_failed = not self.is_started

    def _start(self, arguments: str) -> None:
        """Writes the call if it is not yet, and some of its arguments."""
        if not self.is_started:
            self.is_started = True
            self._held.clear()
            self._writer.start(self._name)
        self._writer.arguments(arguments)

    def _take(self, expected: str, text: str, place: int, end: int) -> tuple[int, str]:
        """Skips blanks and takes one of these characters; "" where none has come, or another."""
        found = _NO_BLANK.search(text, place, end)
        if found is None:
            return end, ""
        if found[0] not in expected:
            self.is_failed = True
            return found.start(), ""
        return found.end(), found[0]

    def _collect(self, text: str, place: int, end: int) -> int:
        read = self._value.feed(text, place, end)
        if not self.is_started:  # then no more keys are of interest, however long they are
            self._raw.append(text[place:read])
        return read

    def _collected(self) -> str:
        try:
            return str(json.loads("".join(self._raw), strict=False))
        except ValueError:
            self.is_failed = True
            return ""
