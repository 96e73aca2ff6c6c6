"""Long JSON texts, in slices: their long arrays are taken out and parsed in pieces, straight into tensors.

Pure. A short list stands for each in what is left, which is parsed in one go. What is refused, and with which words, is
as where all is read in one go: where a piece is no JSON, it is parsed once more behind the text before it, and
positions are told as they are in the whole.
"""

from __future__ import annotations

import codecs
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from protocol.errors import InvalidArgument
from protocol.http.codec.json_text import SURROGATE_ESCAPE, JsonReader
from protocol.http.codec.long_arrays import AFTER_ELEMENT, LongArray, Piece
from protocol.http.codec.packed_data import PackedData
from protocol.sync.sliced import Sliced

T = TypeVar("T")

# What is left of the text may be so long.
LONGEST_REST = 1 << 20
_WORD_SIZE = len(b"Infinity")
_SEARCH_WINDOW = 1 << 18
# Behind a piece that is no JSON: a parser may look at what follows before it finds that.
FOLLOWING = 64
_LIST = msgspec.json.Decoder(list)


class WholeOnly(Exception):
    """Only who reads the whole in one go can tell what it means."""


class Span(Protocol):
    """Of a text."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


class Rest:
    """The text with a short list in place of each array, or of whatever else is long, which nobody else can have
    written."""

    def __init__(self, text: memoryview, arrays: Sequence[Span]) -> None:
        self.mark = secrets.token_hex(16)
        self._size = len(text)
        parts: list[bytes] = []
        # Where a part begins: here, and in the whole text.
        self._begins: list[tuple[int, int]] = []
        self.arrays: list[int] = []
        here = there = 0
        for number, array in enumerate(arrays):
            self._begins.append((here, there))
            parts += (bytes(text[there : array.start]), b'["%b",%d]' % (self.mark.encode(), number))
            here += len(parts[-2])
            self.arrays.append(here)
            here, there = here + len(parts[-1]), array.end
        self._begins.append((here, there))
        parts.append(bytes(text[there:]))
        self.text = b"".join(parts)

    def place(self, position: int) -> int:
        """The place in the whole text."""
        if position >= len(self.text):
            return self._size
        here, there = next(begin for begin in reversed(self._begins) if begin[0] <= position)
        return position - here + there

    def number_of(self, data: Any) -> int | None:
        """Of the array that this list stands for, if it does."""
        return data[1] if type(data) is list and len(data) == 2 and data[0] == self.mark else None


def short_rest(text: memoryview, arrays: Sequence[Span]) -> Rest | None:
    """None where it would be too long to be made and read in one go."""
    is_short = len(text) - sum(array.end - array.start for array in arrays) <= LONGEST_REST
    return Rest(text, arrays) if is_short else None


def read_rest(rest: Rest, reader: JsonReader[T]) -> tuple[T, None] | tuple[None, InvalidArgument]:
    """What is left of the text; where that is wrong, why: a mistake in an array before it is to be told instead."""
    try:
        return reader.read(rest.text, rest.place), None
    except InvalidArgument as error:
        return None, error


def read_arrays(
    text: memoryview,
    arrays: Sequence[LongArray],
    rest: Rest,
    found: Sequence[PackedData],
    reader: JsonReader[Any],
    refused: InvalidArgument | None,
) -> Sliced[None]:
    """Fill what was `found` for each array. `refused` is what is wrong with the rest, which `reader` has read.

    Raises:
        InvalidArgument: the first thing that is wrong.
        WholeOnly: see there.
    """
    is_finite: bool | None = None
    is_lenient = False
    for number, (array, data) in enumerate(zip(arrays, found, strict=True)):
        for piece in array.pieces:
            # One that follows another without a comma is none.
            if piece.is_long_string and piece.lead != AFTER_ELEMENT and (yield from data.add_long_string(text, piece)):
                continue
            try:
                elements = _elements(text, piece)
            except msgspec.ValidationError:  # a number too large for any float, told by its index
                raise WholeOnly from None
            except (msgspec.DecodeError, UnicodeDecodeError):
                if is_finite is None:
                    is_finite = not (yield from has_words(text))
                if is_finite:
                    _refuse(text, piece, rest, rest.arrays[number], reader)
                if refused is not None:
                    raise WholeOnly from None
                if not is_lenient:
                    yield from _check_leniently(text, rest)
                    is_lenient = True
                elements = _elements_leniently(text, piece)
            except RecursionError:
                raise WholeOnly from None
            data.add(elements)
            yield
    if refused is not None:
        if is_finite is None and (yield from has_words(text)):
            raise WholeOnly
        raise refused


def _elements(text: memoryview, piece: Piece) -> list[Any]:
    """Raises msgspec.DecodeError, UnicodeDecodeError, RecursionError."""
    opening = _opening(text, piece)
    read = _LIST.decode(opening + bytes(text[piece.start : piece.end]) + b"]" * piece.after)
    return _without_lead(read, piece, opening)


def _elements_leniently(text: memoryview, piece: Piece) -> list[Any]:
    """With numbers that JSON has no word for. Raises `WholeOnly`."""
    data, opening = bytes(text[piece.start : piece.end]), _opening(text, piece)
    if SURROGATE_ESCAPE.search(data):
        raise WholeOnly
    try:
        return _without_lead(json.loads((opening + data + b"]" * piece.after).decode()), piece, opening)
    except (ValueError, RecursionError):
        raise WholeOnly from None


def _opening(text: memoryview, piece: Piece) -> bytes:
    """Brackets that are open at the piece's start, and an element before it where it follows one: an empty list before
    lists, so that all stay of one depth."""
    if piece.lead == b",":
        is_nested = bytes(text[piece.start : piece.start + FOLLOWING]).lstrip(b" \t\r\n").startswith(b"[")
        return b"[" * piece.before + (b"[]," if is_nested else b"0,")
    return b"[" * piece.before + piece.lead


def _without_lead(elements: list[Any], piece: Piece, opening: bytes) -> list[Any]:
    if opening.endswith((AFTER_ELEMENT, b"0,")):
        inner = elements
        for _ in range(piece.before - 1):
            inner = inner[0]
        del inner[0]
    return elements


def has_words(text: memoryview) -> Sliced[bool]:
    """Whether there is a word for a number that JSON has none for, wherever it is."""
    for start in range(0, len(text), _SEARCH_WINDOW):
        window = bytes(text[max(start - _WORD_SIZE, 0) : start + _SEARCH_WINDOW])
        if b"NaN" in window or b"Infinity" in window:
            return True
        yield
    return False


def _check_leniently(text: memoryview, rest: Rest) -> Sliced[None]:
    """Raises `WholeOnly` where the standard library, which reads words for numbers, may refuse what is not in
    arrays."""
    check = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for start in range(0, len(text), _SEARCH_WINDOW):
            check(bytes(text[start : start + _SEARCH_WINDOW]), start + _SEARCH_WINDOW >= len(text))
            yield
        if SURROGATE_ESCAPE.search(rest.text):
            raise WholeOnly
        json.loads(rest.text)
    except (ValueError, RecursionError):
        raise WholeOnly from None


@dataclass(frozen=True, slots=True)
class _Suspect:
    """The text up to the end of a piece, with nothing left of its array before the piece but brackets."""

    before: bytes
    opening: bytes
    start: int
    size: int
    rest: Rest

    def place(self, position: int) -> int:
        if position < len(self.before):
            return self.rest.place(position)
        return min(max(position - len(self.before) - len(self.opening), 0) + self.start, self.size)


def _refuse(text: memoryview, piece: Piece, rest: Rest, array_start: int, reader: JsonReader[Any]) -> None:
    """Raises InvalidArgument for the first thing that is wrong up to here, or `WholeOnly`."""
    suspect = _Suspect(rest.text[:array_start], _opening(text, piece), piece.start, len(text), rest)
    end = min(piece.end + FOLLOWING, len(text))
    reader.read(suspect.before + suspect.opening + bytes(text[piece.start : end]), suspect.place)
    raise WholeOnly
