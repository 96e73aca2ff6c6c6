"""Codec of inference bodies whose JSON is long: as `codec.infer` reads them, in slices.

Pure. The long `data` arrays are taken out of the text and parsed in pieces, straight into tensors; a short list stands
for each in what is left, which is parsed in one go. What is refused, and with which words, is the same: where a piece
is no JSON, it is parsed once more behind the text before it, and positions are told as they are in the whole.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.datatypes import BY_PROTOCOL_NAME
from protocol.errors import InvalidArgument
from protocol.http.codec.infer import READER, DecodedRequest, InferBody, RequestedInput, json_too_large, request_of
from protocol.http.codec.json_text import SURROGATE_ESCAPE
from protocol.http.codec.long_arrays import LongArray, Piece, find_long_arrays
from protocol.http.codec.packed_data import PackedData
from protocol.messages import Buffer
from protocol.sync.sliced import Sliced

# What is left of the text may be so long.
LONGEST_REST = 1 << 20
_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[')
_WORD_SIZE = len(b"Infinity")
_SEARCH_WINDOW = 1 << 18
_FIRST_PART = 1 << 16
# Behind a piece that is no JSON: a parser may look at what follows before it finds that.
_FOLLOWING = 64
_LIST = msgspec.json.Decoder(list)


class _WholeOnly(Exception):
    """Only who reads the whole in one go can tell what it means."""


def decode_long_request(
    body: Buffer, header_length: int | None, *, model_name: str, model_version: int, max_input_size: int
) -> Sliced[DecodedRequest | None]:
    """As `decode_infer_request`. None for a body that must be read by that: little of it are arrays, or its JSON is of
    an unusual kind."""
    view = memoryview(body)
    json_size = len(view) if header_length is None else header_length
    if json_size > max_input_size:
        raise json_too_large(json_size, max_input_size)
    text = view[:json_size]
    arrays = yield from find_long_arrays(text, _DATA)
    if not arrays:
        yield from _refuse_early(text)
        return None
    rest = _Rest(text, arrays)
    if len(rest.text) > LONGEST_REST:
        return None
    try:
        message = yield from _read(text, arrays, rest)
    except _WholeOnly:
        return None
    return request_of(
        message, view, header_length, model_name=model_name, model_version=model_version, max_input_size=max_input_size
    )


def _refuse_early(text: memoryview) -> Sliced[None]:
    """Raises InvalidArgument where a text without long arrays is wrong in its first part, whatever follows."""
    if (yield from _has_words(text)):
        return
    part = text[:_FIRST_PART]
    positions: list[int] = []

    def place(position: int) -> int:
        positions.append(position)
        return position

    try:
        READER.read(part, place)
    except InvalidArgument:
        if not positions or positions[0] < len(part) - _FOLLOWING:
            raise


class _Rest:
    """The text with a short list in place of each array, which nobody else can have written."""

    def __init__(self, text: memoryview, arrays: Sequence[LongArray]) -> None:
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


def _read(text: memoryview, arrays: Sequence[LongArray], rest: _Rest) -> Sliced[InferBody]:
    """The message, with `PackedData` in place of long arrays. Raises InvalidArgument, `_WholeOnly`."""
    message, refused = None, None
    try:
        message = READER.read(rest.text, rest.place)
    except InvalidArgument as error:
        refused = error
    items: dict[int, RequestedInput] = {}
    if message is not None:
        items = {number: item for item in message.inputs if (number := rest.number_of(item.data)) is not None}
        if len(items) < len(arrays) and message.parameters and rest.mark in repr(message.parameters):
            raise _WholeOnly
    is_finite: bool | None = None
    is_lenient = False
    for number, array in enumerate(arrays):
        item = items.get(number)
        data = _room(item, array)
        for piece in array.pieces:
            if piece.is_long_string and (yield from data.add_long_string(text, piece)):
                continue
            try:
                elements = _elements(text, piece)
            except msgspec.ValidationError:  # a number too large for any float, told by its index
                raise _WholeOnly from None
            except (msgspec.DecodeError, UnicodeDecodeError):
                if is_finite is None:
                    is_finite = not (yield from _has_words(text))
                if is_finite:
                    _refuse(text, piece, rest, rest.arrays[number])
                if refused is not None:
                    raise _WholeOnly from None
                if not is_lenient:
                    yield from _check_leniently(text, rest)
                    is_lenient = True
                elements = _elements_leniently(text, piece)
            except RecursionError:
                raise _WholeOnly from None
            data.add(elements)
            yield
        if item is not None:
            item.data = data
    if refused is not None:
        if is_finite is None and (yield from _has_words(text)):
            raise _WholeOnly
        raise refused
    assert message is not None
    return message


def _room(item: RequestedInput | None, array: LongArray) -> PackedData:
    size = array.end - array.start
    if item is None:
        return PackedData("", None, 0, size)
    count = math.prod(item.shape) if all(dimension >= 0 for dimension in item.shape) else 0
    return PackedData(item.name, BY_PROTOCOL_NAME.get(item.datatype), count, size)


def _elements(text: memoryview, piece: Piece) -> list[Any]:
    """Raises msgspec.DecodeError, UnicodeDecodeError, RecursionError."""
    opening = _opening(text, piece)
    read = _LIST.decode(opening + bytes(text[piece.start : piece.end]) + b"]" * piece.after)
    return _without_lead(read, piece, opening)


def _elements_leniently(text: memoryview, piece: Piece) -> list[Any]:
    """With numbers that JSON has no word for. Raises `_WholeOnly`."""
    data, opening = bytes(text[piece.start : piece.end]), _opening(text, piece)
    if SURROGATE_ESCAPE.search(data):
        raise _WholeOnly
    try:
        return _without_lead(json.loads((opening + data + b"]" * piece.after).decode()), piece, opening)
    except (ValueError, RecursionError):
        raise _WholeOnly from None


def _opening(text: memoryview, piece: Piece) -> bytes:
    """Brackets that are open at the piece's start, and an element before it where it follows one: an empty list before
    lists, so that all stay of one depth."""
    if piece.lead == b",":
        is_nested = bytes(text[piece.start : piece.start + _FOLLOWING]).lstrip(b" \t\r\n").startswith(b"[")
        return b"[" * piece.before + (b"[]," if is_nested else b"0,")
    return b"[" * piece.before + piece.lead


def _without_lead(elements: list[Any], piece: Piece, opening: bytes) -> list[Any]:
    if opening.endswith((b"0", b"0,")):
        inner = elements
        for _ in range(piece.before - 1):
            inner = inner[0]
        del inner[0]
    return elements


def _has_words(text: memoryview) -> Sliced[bool]:
    """Whether there is a word for a number that JSON has none for, wherever it is."""
    for start in range(0, len(text), _SEARCH_WINDOW):
        window = bytes(text[max(start - _WORD_SIZE, 0) : start + _SEARCH_WINDOW])
        if b"NaN" in window or b"Infinity" in window:
            return True
        yield
    return False


def _check_leniently(text: memoryview, rest: _Rest) -> Sliced[None]:
    """Raises `_WholeOnly` where the standard library, which reads words for numbers, may refuse what is not in
    arrays."""
    check = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for start in range(0, len(text), _SEARCH_WINDOW):
            check(bytes(text[start : start + _SEARCH_WINDOW]), start + _SEARCH_WINDOW >= len(text))
            yield
        if SURROGATE_ESCAPE.search(rest.text):
            raise _WholeOnly
        json.loads(rest.text)
    except (ValueError, RecursionError):
        raise _WholeOnly from None


@dataclass(frozen=True, slots=True)
class _Suspect:
    """The text up to the end of a piece, with nothing left of its array before the piece but brackets."""

    before: bytes
    opening: bytes
    start: int
    size: int
    rest: _Rest

    def place(self, position: int) -> int:
        if position < len(self.before):
            return self.rest.place(position)
        return min(max(position - len(self.before) - len(self.opening), 0) + self.start, self.size)


def _refuse(text: memoryview, piece: Piece, rest: _Rest, array_start: int) -> None:
    """Raises InvalidArgument for the first thing that is wrong up to here, or `_WholeOnly`."""
    suspect = _Suspect(rest.text[:array_start], _opening(text, piece), piece.start, len(text), rest)
    end = min(piece.end + _FOLLOWING, len(text))
    READER.read(suspect.before + suspect.opening + bytes(text[piece.start : end]), suspect.place)
    raise _WholeOnly
