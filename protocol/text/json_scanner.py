"""JSON scanner: finds the end of one JSON value in a stream of text, without a parse of what is in it. Pure."""

from __future__ import annotations

import re

_IN_STRING = re.compile(r'["\\]')
# `<` stands in no JSON outside of strings: there the marker begins with which a model ends a call that it left open.
_STRUCTURE = re.compile(r'["{}\[\]<]')
_SCALAR_END = re.compile(r"[\s,:}\]{\[\"<]")


class JsonValue:
    """One value: object, array, string or scalar; white space before it is the caller's. Holds no text.

    Brackets are counted, not matched: the value of a model that writes no JSON ends somewhere, too.

    Attributes:
        is_done: the value is whole. A scalar is, when the character after it has come.
        is_broken: the text at hand cannot go on with this value.
    """

    __slots__ = ("_depth", "_is_begun", "_is_escaped", "_is_scalar", "_is_string", "is_broken", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.is_broken = False
        self._depth = 0
        self._is_begun = False
        self._is_scalar = False
        self._is_string = False
        self._is_escaped = False

    def feed(self, text: str, place: int, end: int) -> int:
        """Reads `text[place:end]`, and gives the place up to which it belongs to the value."""
        if not self._is_begun and place < end:
            place = self._begin(text, place)
        while place < end and not (self.is_done or self.is_broken):
            if self._is_string:
                place = self._string(text, place, end)
            elif self._is_scalar:
                found = _SCALAR_END.search(text, place, end)
                self.is_done = found is not None
                place = end if found is None else found.start()
            else:
                place = self._nested(text, place, end)
        return place

    def _begin(self, text: str, place: int) -> int:
        self._is_begun = True
        first = text[place]
        if first in "{[":
            self._depth = 1
        elif first == '"':
            self._is_string = True
        elif first == "-" or first.isalnum():
            self._is_scalar = True
        else:
            self.is_broken = True
            return place
        return place + 1

    def _string(self, text: str, place: int, end: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return place + 1
        found = _IN_STRING.search(text, place, end)
        if found is None:
            return end
        if found[0] == "\\":
            self._is_escaped = True
        else:
            self._is_string = False
            self.is_done = not self._depth
        return found.end()

    def _nested(self, text: str, place: int, end: int) -> int:
        found = _STRUCTURE.search(text, place, end)
        if found is None:
            return end
        match found[0]:
            case '"':
                self._is_string = True
            case "{" | "[":
                self._depth += 1
            case "<":
                self.is_broken = True
                return found.start()
            case _:
                self._depth -= 1
                self.is_done = not self._depth
        return found.end()
