"""Long arrays of a JSON text: where they are, and how to cut them into pieces that can be parsed one by one.

Pure, and sliced: a scan looks at a window of the text between two yields. It tells strings, brackets and commas apart
and checks nothing else, so what it finds holds as far as the text is JSON: up to a parser's first error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.http.codec.json_text import MAX_NESTING
from protocol.sync.sliced import Sliced

# Bytes of a window, and with it of a piece, if no element is longer: some thousand elements.
WINDOW = 1 << 14
# A shorter array stays in the text that is parsed in one go.
LONG_ABOVE = 1 << 11
# A window without an end of an element grows, up to here; then its element is one long string, or the array is none
# that can be cut.
_LARGEST_WINDOW = 1 << 20
# Of the text between two arrays.
_SEARCH_WINDOW = 1 << 18
_STRING_WINDOW = 1 << 15
_KEY_SIZE = 256  # bytes that a key and its colon take at most to be seen across two windows

# The lead of what follows an element without a comma, which is a mistake. The blank keeps a number from going on.
AFTER_ELEMENT = b"0 "

_OPEN, _CLOSE, _OPEN_BRACE, _CLOSE_BRACE, _COMMA, _QUOTE = b'[]{},"'
_IN_STRING = re.compile(rb'(?:[^"\\]|\\.)*+', re.DOTALL)
_BLANKS = b" \t\r\n"
_OPENING = re.compile(rb"[ \t\r\n\[]*")


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole elements of an array, with brackets of nested ones that are open at its ends.

    Attributes:
        start, end: its bytes, without the comma that may follow.
        before, after: how many brackets are open at its start and at its end, the array's own among them.
        lead: what its elements follow where it is parsed alone: nothing, a comma or an element.
        is_long_string: it is one string, of more than a window.
    """

    start: int
    end: int
    before: int
    after: int
    lead: bytes
    is_long_string: bool = False


@dataclass(slots=True)
class LongArray:
    """From its bracket to the one that closes it, or to the end of a text in which none does."""

    start: int
    end: int = 0
    pieces: list[Piece] = field(default_factory=list)


def find_long_arrays(text: memoryview, key: re.Pattern[bytes]) -> Sliced[list[LongArray]]:
    """Those that follow `key`, which matches all from a key's first quote to the bracket, in the order of the text. One
    that cannot be cut is left out."""
    found: list[LongArray] = []
    position, size = 0, len(text)
    while position < size:
        begin, window = position, bytes(text[position : position + _SEARCH_WINDOW])
        end = begin + len(window)
        yield
        while position < end and (match := key.search(window, position - begin)) is not None:
            start = begin + match.end() - 1
            array = yield from _scan(text, start)
            position = start + 1 if array is None else max(array.end, start + 1)
            if array is not None and array.end - start > LONG_ABOVE:
                found.append(array)
        if position < end:
            position = max(position, end - _KEY_SIZE, begin + 1) if end < size else size
    return found


def _scan(text: memoryview, start: int) -> Sliced[LongArray | None]:
    """The array that begins at `start`; None for one that cannot be cut."""
    array = LongArray(start)
    # Of many short arrays, each is found in a window that is no longer than they are.
    position, depth, lead, width = start + 1, 1, b"", LONG_ABOVE
    while True:
        window = bytes(text[position : position + width])
        is_last = position + len(window) == len(text)
        found = _flat(window) if depth == 1 else None
        found = _nested(window, depth) if found is None else found
        yield
        if found is None:
            return None
        end, cut, after = found
        if end >= 0:
            array.pieces.append(Piece(position, position + end, depth, 1, lead))
            array.end = position + end + 1
            return array
        if cut < 0 and is_last:
            array.pieces.append(Piece(position, len(text), depth, depth, lead))
            array.end = len(text)
            return array
        if cut >= 0:
            before = window[:cut].rstrip(_BLANKS)
            is_element = before[-1:] != b"[" if before else lead != b""
            # A comma that follows none is a mistake, which the piece must show when it is parsed.
            array.pieces.append(Piece(position, position + cut + (not is_element), depth, after, lead))
            position, depth, lead, width = position + cut + 1, after, b",", WINDOW
            continue
        opened = _OPENING.match(window)
        assert opened is not None  # it matches nothing, too
        brackets = opened[0].count(b"[")
        if brackets:
            array.pieces.append(Piece(position, position + opened.end(), depth, depth + brackets, lead))
            position, depth, lead = position + opened.end(), depth + brackets, b""
            continue
        if window[opened.end() : opened.end() + 1] == b'"':
            string_end = yield from _string_end(text, position + opened.end() + 1)
            array.pieces.append(Piece(position, string_end, depth, depth, lead, is_long_string=True))
            position, lead, width = string_end, AFTER_ELEMENT, WINDOW
            if bytes(text[position : position + 1]) == b",":
                position, lead = position + 1, b","
            continue
        width *= 4
        if width > _LARGEST_WINDOW:
            return None


def _flat(window: bytes) -> tuple[int, int, int] | None:
    """As `_nested`, of a window in which the array has no strings, objects and arrays; None for others."""
    end = window.find(b"]")
    elements = window if end < 0 else window[:end]
    if b"[" in elements or b'"' in elements or b"{" in elements:
        return None
    return end, elements.rfind(b",") if end < 0 else -1, 1


def _nested(window: bytes, depth: int) -> tuple[int, int, int] | None:
    """Where the array ends, or -1; where the last comma is behind which it may be cut, or -1; and how many brackets are
    open there. None for an array that is nested too deeply."""
    if b"\\" in window:  # so that a quote is one
        window = window.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    if not window:
        return -1, -1, depth
    codes: NDArray[Any] = np.frombuffer(window, np.uint8)
    steps = (codes == _OPEN).view(np.int8) - (codes == _CLOSE).view(np.int8)
    braces = (codes == _OPEN_BRACE).view(np.int8) - (codes == _CLOSE_BRACE).view(np.int8)
    is_outside = None
    if b'"' in window:
        is_outside = np.cumsum(codes == _QUOTE, dtype=np.int32) & 1 == 0
        steps *= is_outside
        braces *= is_outside
    depths = np.cumsum(steps, dtype=np.int32) + depth
    ends = np.flatnonzero(depths == 0)
    end = int(ends[0]) if len(ends) else -1
    if int(depths[: end if end >= 0 else None].max(initial=0)) > MAX_NESTING:
        return None
    if end >= 0:
        return end, -1, 0
    commas = codes == _COMMA
    if is_outside is not None:
        commas &= is_outside
    if braces.any():
        commas &= np.cumsum(braces, dtype=np.int32) == 0
    cuts = np.flatnonzero(commas)
    cut = int(cuts[-1]) if len(cuts) else -1
    return -1, cut, int(depths[cut])


def _string_end(text: memoryview, position: int) -> Sliced[int]:
    """Behind the quote that ends the string; the text's end where none does."""
    while position < len(text):
        window = bytes(text[position : position + _STRING_WINDOW])
        at = window.find(b'"')
        if b"\\" in window:  # there may be quotes that end nothing
            inside = _IN_STRING.match(window)
            assert inside is not None  # it matches nothing, too
            at = inside.end()
            if not at:
                return len(text) if len(window) < 2 else position + 1
        yield
        if at < 0:
            position += len(window)
        elif at < len(window) and window[at] == _QUOTE:
            return position + at + 1
        else:
            position += at
    return len(text)
