"""The forms of requests and responses, as the server writes and reads them: a pure codec, which trusts nothing that a
worker sends.

What a form is stands in `worker.trioton_worker.frames`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from backends.python.wire import BrokenFrame
from backends.python.worker.trioton_worker.frames import ALIGNMENT, LONGEST_KNOWN_FORM, MOST_FORMS, aligned
from protocol.datatypes import DataType

DATATYPES = {datatype.number: datatype for datatype in DataType if datatype is not DataType.INVALID}
_HIGHEST_RANK = 64  # numpy's
_PADDING = bytes(ALIGNMENT)

# What tensors of one form have in common: the name, datatype and shape of each.
FormKey: TypeAlias = list[tuple[str, DataType, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class FormTensor:
    """One tensor of a form. `start` and `end` count from the first one, where none is of BYTES."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    start: int
    end: int
    padding: bytes


class Form:
    """`data` is its text. Where no tensor is of BYTES (`is_fixed`) all take `size` bytes together, padding included."""

    __slots__ = ("data", "is_fixed", "is_padded", "size", "tensors")

    def __init__(self, data: bytes, key: FormKey) -> None:
        self.data = data
        self.is_fixed = True
        self.is_padded = False
        position = 0
        tensors = []
        for name, datatype, shape in key:
            size = math.prod(shape) * datatype.itemsize
            padding = padding_of(size)
            tensors.append(FormTensor(name, datatype, shape, position, position + size, padding))
            position = aligned(position + size)
            if datatype is DataType.BYTES:
                self.is_fixed = False
            if padding:
                self.is_padded = True
        self.tensors: Sequence[FormTensor] = tuple(tensors)
        self.size = position


def padding_of(size: int) -> bytes:
    """What follows a tensor of so many bytes."""
    over = size % ALIGNMENT
    return _PADDING[over:] if over else b""


class Forms:
    """Those of one worker, by what they have in common and by their text. It forgets all when there are too many."""

    def __init__(self) -> None:
        self._of_keys: dict[tuple[tuple[str, DataType, tuple[int, ...]], ...], Form] = {}
        self._of_texts: dict[bytes, Form] = {}

    def of(self, key: FormKey) -> Form:
        """To the worker."""
        known = tuple(key)
        form = self._of_keys.get(known)
        if form is None:
            text = msgspec.json.encode([(name, datatype.number, shape) for name, datatype, shape in key])
            form = Form(text, key)
            if len(text) <= LONGEST_KNOWN_FORM:
                if len(self._of_keys) >= MOST_FORMS:
                    self._of_keys.clear()
                self._of_keys[known] = form
        return form

    def read(self, data: bytes) -> Form:
        """Of the worker.

        Raises:
            BrokenFrame: this is no form.
        """
        form = self._of_texts.get(data)
        if form is None:
            form = _decode(data)
            if len(data) <= LONGEST_KNOWN_FORM:
                if len(self._of_texts) >= MOST_FORMS:
                    self._of_texts.clear()
                self._of_texts[data] = form
        return form


def _decode(data: bytes) -> Form:
    try:
        found = msgspec.json.decode(data, type=list[tuple[str, int, tuple[int, ...]]])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BrokenFrame(f"its frame has the form {data[:200]!r}: {error}") from None
    key: FormKey = []
    for name, number, shape in found:
        datatype = DATATYPES.get(number)
        if datatype is None:
            raise BrokenFrame(f"its output '{name}' has the datatype {number}")
        if len(shape) > _HIGHEST_RANK or (shape and min(shape) < 0):
            raise BrokenFrame(f"its output '{name}' has the shape {list(shape)[:_HIGHEST_RANK]}")
        key.append((name, datatype, shape))
    return Form(data, key)
