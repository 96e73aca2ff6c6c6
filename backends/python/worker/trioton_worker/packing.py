"""Codec of tensors in frames: from and to model objects, with their schemas."""

from __future__ import annotations

from typing import AbstractSet, Any, Callable, List, Sequence, Tuple

from .connection import Buffer, Frame
from .frames import DATATYPE_BYTES, PLACED_BYTE_SIZE, aligned
from .schemas import Schema, SchemaKey, Schemas, padding_of
from .tensors import Raw, Tensor

# Of a frame: the runs, their schemas, and the body with its size.
Parts = Tuple[List[int], bytes, Sequence[Buffer], int]


class Packing:
    """The tensors of one frame, their bytes still where the model left them; `size` bytes when they are together."""

    __slots__ = ("_count_at", "_key", "_known", "_parts", "_runs", "_schema", "_schemas", "size")

    def __init__(self, known: Schemas) -> None:
        self.size = 0
        self._known = known
        self._runs: list[int] = []
        self._schemas: list[bytes] = []
        self._parts: list[Raw] = []
        # The run that grows: what its requests have in common, its schema, if it has one, and where its count is.
        self._key: SchemaKey | int | None = None
        self._schema: Schema | None = None
        self._count_at = 0

    def add(self, tensors: Sequence[Tensor], names: AbstractSet[str] | None = None) -> None:
        """Add the tensors of one request or response; with `names` no others."""
        wanted = []
        each = []
        for tensor in tensors:
            name = tensor._name
            if names is None or name in names:
                wanted.append(tensor)
                each.append((name, tensor._number, tensor._shape))
        key = tuple(each)
        if key != self._key:
            found = self._known.by_key.get(key) or self._known.of(key)
            self._schemas.append(found.data)
            self._begin(key, found, len(found.data))
        schema = self._schema
        assert schema is not None  # that of the key
        self._runs[self._count_at] += 1
        self.size += schema.size
        if schema.is_plain:
            parts = self._parts
            for tensor in wanted:
                parts.append(tensor._array.tobytes() if type(tensor) is Tensor else tensor._raw())
        else:
            self._add_padded(wanted, schema)

    def add_other(self, what: int) -> None:
        """Add a request that is answered otherwise, as `what` says."""
        if what != self._key:
            self._begin(what, None, what)
        self._runs[self._count_at] += 1

    def _begin(self, key: SchemaKey | int, schema: Schema | None, length: int) -> None:
        self._key = key
        self._schema = schema
        self._count_at = len(self._runs) + 1
        self._runs += (length, 0)

    def _add_padded(self, tensors: Sequence[Tensor], schema: Schema) -> None:
        for tensor, found in zip(tensors, schema.tensors):
            data = tensor._raw()
            padding = found.padding
            if found.number == DATATYPE_BYTES:
                self._runs.append(len(data))
                self.size += aligned(len(data))
                padding = padding_of(len(data))
            self._parts.append(data)
            if padding:
                self._parts.append(padding)

    def copy_to(self, memory: memoryview, place_of: Callable[[Raw], int] | None = None) -> list[tuple[int, int, int]]:
        """Copy all but what has a place already, of which is said where it would be, its place, and its size."""
        placed = []
        position = 0
        for part in self._parts:
            size = len(part)
            place = -1 if place_of is None or size < PLACED_BYTE_SIZE else place_of(part)
            if place < 0:
                memory[position : position + size] = part
            else:
                placed.append((position, place, size))
            position += size
        return placed

    def parts(self) -> Parts:
        """For a frame that has the tensors in it."""
        return self._runs, b"".join(self._schemas), self._parts, self.size


def read_tensors(frame: Frame, known: Schemas, memory: Any, skipped: int = 0) -> list[list[Tensor]]:
    """The tensors of each request or response of a frame, in `memory`; `skipped` numbers stand in front of the runs."""
    column, texts = frame.column, frame.schemas
    found: list[list[Tensor]] = []
    position, text_at, start = skipped, 0, 0
    while position < len(column):
        length, count = column[position], column[position + 1]
        position += 2
        text = texts[text_at : text_at + length]
        text_at += length
        schema = known.by_text.get(text) or known.read(text)
        if schema.is_fixed:
            found += schema.read(memory, start, count)
            start += schema.size * count
            continue
        for _ in range(count):
            tensors, start = schema.read_variable(memory, start, column[position : position + schema.sizes])
            position += schema.sizes
            found.append(tensors)
    return found
