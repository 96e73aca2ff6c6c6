"""Tensor schemas of frames (name, datatype, shape of each tensor), cached by both sides: the worker's side."""

from __future__ import annotations

import json
from typing import Any, Sequence, Tuple

import numpy as np

from .connection import encode_json
from .frames import ALIGNMENT, DATATYPE_BYTES, LONGEST_KNOWN_SCHEMA, MOST_SCHEMAS, aligned
from .tensors import CHEAP_COPY, Tensor, dtype_of, encoded_tensor

# Name, datatype number and shape of each tensor.
SchemaKey = Tuple[Tuple[str, int, Tuple[int, ...]], ...]

_PADDING = bytes(ALIGNMENT)
_new = Tensor.__new__


class SchemaTensor:
    """One tensor of a schema. It begins `start` bytes behind the first, and has `size`; for BYTES neither is known."""

    __slots__ = ("_strides", "dtype", "name", "number", "padding", "shape", "size", "start")

    def __init__(self, name: str, number: int, shape: tuple[int, ...], start: int) -> None:
        self.name = name
        self.number = number
        self.shape = shape
        self.start = start
        self.dtype = dtype_of(number)
        size = self.dtype.itemsize
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
        start = position + self.start
        if not self.shape or not self.size:  # without dimensions it would be a number of a larger array
            return [self.array(memory, start + index * stride) for index in range(count)]
        return list(np.ndarray((count, *self.shape), self.dtype, memory, start, [stride, *self._strides]))

    def array(self, memory: Any, start: int = 0) -> Any:
        """A view of the memory that begins at `start`, and holds it."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        return np.ndarray(self.shape, self.dtype, memory, start)

    def view(self, memory: Any, start: int = 0) -> Tensor:
        """As `array`, but not of BYTES, the model's tensor."""
        made = _new(Tensor)
        made._name = self.name
        made._number = self.number
        made._shape = shape = self.shape
        made._encoded = None
        made._array = np.ndarray(shape, self.dtype, memory, start) if self.size else self.array(memory, start)
        return made


class Schema:
    """`data` is its text. Where no tensor is of BYTES (`is_fixed`) all take `size` bytes together, padding included. It
    `is_plain` where there is no padding, and copies cost no more than views. `sizes` is how many of BYTES there are."""

    __slots__ = ("data", "is_fixed", "is_plain", "size", "sizes", "tensors")

    def __init__(self, data: bytes, key: SchemaKey) -> None:
        self.data = data
        self.tensors: list[SchemaTensor] = []
        self.size = 0
        self.sizes = 0
        for name, number, shape in key:
            self.tensors.append(SchemaTensor(name, number, shape, self.size))
            self.size += aligned(self.tensors[-1].size)
            self.sizes += number == DATATYPE_BYTES
        self.is_fixed = not self.sizes
        is_padded = any(tensor.padding for tensor in self.tensors)
        self.is_plain = self.is_fixed and not is_padded and self.size <= CHEAP_COPY

    def read(self, memory: Any, start: int, count: int) -> list[list[Tensor]]:
        """The tensors of each of `count` requests, the first of which begins at `start`, where the schema `is_fixed`.
        One array is made for each input of all, and cut into those of the requests."""
        found: list[list[Tensor]] = [[] for _ in range(count)] if count > 1 else [[]]
        for tensor in self.tensors:
            name, number, shape = tensor.name, tensor.number, tensor.shape
            arrays: Sequence[Any]
            if count == 1 and tensor.size:
                arrays = (np.ndarray(shape, tensor.dtype, memory, start + tensor.start),)
            else:
                arrays = tensor.arrays(memory, start, count, self.size)
            for place, array in zip(found, arrays):
                made = _new(Tensor)  # as `viewed_tensor`, whose call would cost as much as all of this
                made._name = name
                made._number = number
                made._shape = shape
                made._encoded = None
                made._array = array
                place.append(made)
        return found

    def read_variable(self, memory: Any, start: int, sizes: Sequence[int]) -> tuple[list[Tensor], int]:
        """The tensors of one request, and where the next one begins. `sizes` are those of BYTES."""
        found = []
        left = iter(sizes)
        for tensor in self.tensors:
            size = tensor.size
            if tensor.number == DATATYPE_BYTES:
                size = next(left)
                data = memoryview(memory)[start : start + size]
                found.append(encoded_tensor(tensor.name, tensor.shape, data))
            else:
                found.append(tensor.view(memory, start))
            start = aligned(start + size)
        return found, start


def padding_of(size: int) -> bytes:
    """What follows a tensor of so many bytes."""
    over = size % ALIGNMENT
    return _PADDING[over:] if over else b""


class Schemas:
    """The schemas of one session, by key and by text: look there first. The cache is cleared when it is full."""

    def __init__(self) -> None:
        self.by_key: dict[SchemaKey, Schema] = {}
        self.by_text: dict[bytes, Schema] = {}

    def of(self, key: SchemaKey) -> Schema:
        """Make a schema for a frame to the server."""
        schema = Schema(encode_json(key), key)
        if len(schema.data) <= LONGEST_KNOWN_SCHEMA:
            if len(self.by_key) >= MOST_SCHEMAS:
                self.by_key.clear()
            self.by_key[key] = schema
        return schema

    def read(self, text: bytes) -> Schema:
        """Parse a schema of a frame from the server."""
        schema = Schema(text, tuple((name, number, tuple(shape)) for name, number, shape in json.loads(text)))
        if len(text) <= LONGEST_KNOWN_SCHEMA:
            if len(self.by_text) >= MOST_SCHEMAS:
                self.by_text.clear()
            self.by_text[text] = schema
        return schema
