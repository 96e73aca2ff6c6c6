"""Tensor schemas of worker frames (name, datatype, shape of each tensor), cached by both sides: the server's side.

What a schema is stands in `worker.trioton_worker.frames`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from backends.python.wire.frames import BrokenFrame
from backends.python.worker.trioton_worker.frames import ALIGNMENT, LONGEST_KNOWN_SCHEMA, MOST_SCHEMAS, aligned
from protocol.datatypes import DataType

DATATYPES = {datatype.number: datatype for datatype in DataType if datatype is not DataType.INVALID}
_HIGHEST_RANK = 64  # numpy's
_PADDING = bytes(ALIGNMENT)

# What tensors of one schema have in common: the name, datatype and shape of each.
TensorKey: TypeAlias = tuple[str, DataType, tuple[int, ...]]
SchemaKey: TypeAlias = tuple[TensorKey, ...]

K = TypeVar("K")


class SchemaTensor(NamedTuple):
    """One tensor of a schema. `start` and `end` count from the first one, where none is of BYTES."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    start: int
    end: int
    padding: bytes


class Schema:
    """`data` is its text. Where no tensor is of BYTES (`is_fixed`) all take `size` bytes together, padding included."""

    __slots__ = ("data", "is_fixed", "is_padded", "size", "tensors")

    def __init__(self, data: bytes, key: SchemaKey) -> None:
        self.data = data
        self.is_fixed = True
        self.is_padded = False
        position = 0
        tensors = []
        for name, datatype, shape in key:
            size = math.prod(shape) * datatype.itemsize
            padding = padding_of(size)
            tensors.append(SchemaTensor(name, datatype, shape, position, position + size, padding))
            position = aligned(position + size)
            if datatype is DataType.BYTES:
                self.is_fixed = False
            if padding:
                self.is_padded = True
        self.tensors: Sequence[SchemaTensor] = tuple(tensors)
        self.size = position


def padding_of(size: int) -> bytes:
    """The padding behind a tensor of so many bytes."""
    over = size % ALIGNMENT
    return _PADDING[over:] if over else b""


class _Known(dict[K, "Schema"]):
    """Schemas that are made on first use; the cache is cleared when it is full."""

    def _keep(self, key: K, schema: Schema) -> Schema:
        if len(schema.data) <= LONGEST_KNOWN_SCHEMA:
            if len(self) >= MOST_SCHEMAS:
                self.clear()
            self[key] = schema
        return schema


class SchemasByKey(_Known[SchemaKey]):
    """Schemas of frames to the worker."""

    def __missing__(self, key: SchemaKey) -> Schema:
        text = msgspec.json.encode([(name, datatype.number, shape) for name, datatype, shape in key])
        return self._keep(key, Schema(text, key))


class SchemasByText(_Known[bytes]):
    """Schemas of frames from the worker, by their text. An invalid one raises BrokenFrame."""

    def __missing__(self, text: bytes) -> Schema:
        return self._keep(text, _decode(text))


class Schemas:
    """The schemas of one worker."""

    __slots__ = ("by_key", "by_text")

    def __init__(self) -> None:
        self.by_key = SchemasByKey()
        self.by_text = SchemasByText()


def _decode(data: bytes) -> Schema:
    try:
        found = msgspec.json.decode(data, type=list[tuple[str, int, tuple[int, ...]]])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BrokenFrame(f"its frame has the schema {data[:200]!r}: {error}") from None
    key = []
    for name, number, shape in found:
        datatype = DATATYPES.get(number)
        if datatype is None:
            raise BrokenFrame(f"its output '{name}' has the datatype {number}")
        if len(shape) > _HIGHEST_RANK or (shape and min(shape) < 0):
            raise BrokenFrame(f"its output '{name}' has the shape {list(shape)[:_HIGHEST_RANK]}")
        key.append((name, datatype, shape))
    return Schema(data, tuple(key))
