"""The forms of requests and responses, as the worker writes and reads them; what they are stands in `frames`."""

from __future__ import annotations

import json
from typing import Any, List, Tuple

import numpy as np

from .connection import encode_json
from .frames import ALIGNMENT, DATATYPE_BYTES, LONGEST_KNOWN_FORM, MOST_FORMS, aligned
from .tensors import dtype_of

# Name, datatype number and shape of each tensor.
FormKey = List[Tuple[str, int, Tuple[int, ...]]]

_PADDING = bytes(ALIGNMENT)


class FormTensor:
    """One tensor of a form. It begins `start` bytes behind the first one, and has `size`; of BYTES neither is known."""

    __slots__ = ("_dtype", "_strides", "name", "number", "padding", "shape", "size", "start")

    def __init__(self, name: str, number: int, shape: tuple[int, ...], start: int) -> None:
        self.name = name
        self.number = number
        self.shape = shape
        self.start = start
        self._dtype = dtype_of(number)
        size = self._dtype.itemsize
        strides = []
        for dimension in reversed(shape):
            strides.append(size)
            size *= dimension
        self._strides = strides[::-1]
        self.size = 0 if number == DATATYPE_BYTES else size
        self.padding = padding_of(self.size)

    def arrays(self, memory: Any, position: int, count: int, stride: int) -> list[Any]:
        """Its array in each of `count` requests that follow each other every `stride` bytes, the first of which begins
        at `position`: views, each of which holds the memory."""
        if count == 1 or not self.shape or not self.size:  # without dimensions it would be a number of a larger array
            return [self.array(memory, position + self.start + index * stride) for index in range(count)]
        start = position + self.start
        return list(np.ndarray((count, *self.shape), self._dtype, memory, start, [stride, *self._strides]))

    def array(self, memory: Any, start: int = 0) -> Any:
        """A view of the memory that begins at `start`, and holds it."""
        if not self.size:
            return np.empty(self.shape, self._dtype)
        return np.ndarray(self.shape, self._dtype, memory, start)


class Form:
    """`data` is its text. Where no tensor is of BYTES (`is_fixed`) all take `size` bytes together, padding included."""

    __slots__ = ("data", "is_fixed", "is_padded", "size", "tensors")

    def __init__(self, data: bytes, key: FormKey) -> None:
        self.data = data
        self.tensors: list[FormTensor] = []
        self.size = 0
        for name, number, shape in key:
            self.tensors.append(FormTensor(name, number, shape, self.size))
            self.size += aligned(self.tensors[-1].size)
        self.is_fixed = all(tensor.number != DATATYPE_BYTES for tensor in self.tensors)
        self.is_padded = any(tensor.padding for tensor in self.tensors)


def padding_of(size: int) -> bytes:
    """What follows a tensor of so many bytes."""
    over = size % ALIGNMENT
    return _PADDING[over:] if over else b""


class Forms:
    """Those of one session, by what they have in common and by their text. It forgets all when there are too many."""

    def __init__(self) -> None:
        self._of_keys: dict[tuple[tuple[str, int, tuple[int, ...]], ...], Form] = {}
        self._of_texts: dict[bytes, Form] = {}

    def of(self, key: FormKey) -> Form:
        """To the server."""
        known = tuple(key)
        form = self._of_keys.get(known)
        if form is None:
            form = Form(encode_json(key), key)
            if len(form.data) <= LONGEST_KNOWN_FORM:
                if len(self._of_keys) >= MOST_FORMS:
                    self._of_keys.clear()
                self._of_keys[known] = form
        return form

    def read(self, data: bytes) -> Form:
        """Of the server."""
        form = self._of_texts.get(data)
        if form is None:
            form = Form(data, [(name, number, tuple(shape)) for name, number, shape in json.loads(data)])
            if len(data) <= LONGEST_KNOWN_FORM:
                if len(self._of_texts) >= MOST_FORMS:
                    self._of_texts.clear()
                self._of_texts[data] = form
        return form
