"""Packed data: the elements of a long JSON `data` array, parsed and laid out piece by piece.

Pure. Stands for the list of all elements where that would be too long to be made in one go (`long_infer`), and is
checked like one in `tensor_json`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.http.codec.long_arrays import Piece
from protocol.http.codec.tensor_json import ALLOWED, PackedElements, flatten, pack
from protocol.messages import Buffer, encode_bytes_elements
from protocol.sync.sliced import Sliced

_READ_STRING = msgspec.json.Decoder(str).decode
_ESCAPE = ord("\\")
_FIRST_HALF = re.compile(rb"\\u[dD][89abAB]")
_STRING_PART = 1 << 16
_LENGTH_SIZE = 4
# Of a JSON text an element takes a digit and a comma at least, and a string two quotes more.
_LEAST_TEXT = 2


class PackedData(PackedElements):
    """Elements for a tensor of `datatype` with `count` elements, from `size` bytes of text. Without a datatype they are
    looked at, and not kept."""

    __slots__ = ("_error", "_name", "_position", "_room", "datatype", "is_nested")

    def __init__(self, name: str, datatype: DataType | None, count: int, size: int) -> None:
        super().__init__()
        self._name = name
        self.datatype = datatype
        self.is_nested = False  # whether there are lists among them
        self._error: InvalidArgument | None = None
        self._position = 0
        self._room: NDArray[Any] | None = None
        most = size // _LEAST_TEXT + 1
        if datatype is None or not 0 < count <= most:
            self.datatype = None
        elif datatype is DataType.BYTES:
            self._room = np.empty(size + _LENGTH_SIZE * min(count, most), np.uint8)
        else:
            self._room = np.empty(count * datatype.itemsize, np.uint8)

    def add(self, elements: list[Any]) -> None:
        """Those of one piece, which may be nested."""
        types = set(map(type, elements))
        if list in types:
            self.is_nested = True
            elements, types = flatten(elements, types)
        self.count += len(elements)
        self.types |= types
        if self.datatype is None or self._error is not None or not self.types <= ALLOWED[self.datatype][0]:
            return
        try:
            if self.datatype is DataType.BYTES:
                self._keep(encode_bytes_elements(elements))
            else:
                self._keep(memoryview(pack(self._name, self.datatype, elements)))
        except InvalidArgument as error:  # the range of one
            self._error = error

    def add_long_string(self, text: memoryview, piece: Piece) -> Sliced[bool]:
        """A string, without a Python object of its size. False for one that is read leniently or not at all, which is
        left out."""
        start = bytes(text[piece.start : piece.start + 64]).find(b'"') + piece.start + 1
        end = piece.end - 1
        if start == piece.start or end < start or text[end] != ord('"'):
            return False
        begun, is_kept = self._position, self.datatype is DataType.BYTES and self.types <= {str}
        if is_kept:
            self._keep(bytes(_LENGTH_SIZE))
        while start < end:
            part = bytes(text[start : min(start + _STRING_PART, end)])
            if start + len(part) < end:
                part = part[: _whole_characters(part)]
            try:
                read = _READ_STRING(b'"%b"' % part) if part else None
            except (msgspec.DecodeError, UnicodeDecodeError):
                read = None
            if read is None:
                self._position = begun
                return False
            if is_kept:
                self._keep(read.encode())
            start += len(part)
            yield
        if is_kept:
            size = self._position - begun - _LENGTH_SIZE
            self._put(begun, size.to_bytes(_LENGTH_SIZE, "little"))
        self.count += 1
        self.types.add(str)
        return True

    def raw(self) -> Buffer:
        if self._error is not None:
            raise self._error
        assert self._room is not None
        return self._room.data[: self._position]

    def _keep(self, data: Buffer) -> None:
        """What is more than the tensor holds is counted by the caller, and not kept."""
        self._put(self._position, data)
        self._position += len(data)

    def _put(self, position: int, data: Buffer) -> None:
        assert self._room is not None
        end = position + len(data)
        if end <= len(self._room):
            self._room.data[position:end] = data


def _whole_characters(part: bytes) -> int:
    """How much of a string's beginning ends behind a character, be it written as itself or as an escape."""
    end = len(part)
    while end and part[end - 1] & 0xC0 == 0x80:
        end -= 1
    if end and part[end - 1] >= 0xC0:  # the first byte of what may be cut off
        end -= 1
    last = part.rfind(b"\\", 0, end)
    first = last
    while first > 0 and part[first - 1] == _ESCAPE:
        first -= 1
    if last < 0 or (last - first) % 2:  # none, or escaped ones alone
        return end
    size = 2
    if part[last + 1 : last + 2] == b"u":
        # The first half of a pair has the other behind it.
        size = 12 if _FIRST_HALF.match(part, last) else 6
    if last + size <= end:
        return end
    return last - 6 if last >= 6 and _FIRST_HALF.match(part, last - 6) else last
