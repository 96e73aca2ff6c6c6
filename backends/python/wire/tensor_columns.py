"""Codec of tensors in worker frames: gathered from requests, and read from what a worker sends. Pure; validates
everything.

How they lie there is described in `worker.trioton_worker.frames`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from backends.python.wire.frames import BrokenFrame, Frame
from backends.python.wire.schemas import Schema, Schemas, SchemaTensor, TensorKey, padding_of
from backends.python.worker.trioton_worker.frames import COLUMNS, aligned, pack
from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.messages import Buffer, Tensor
from protocol.tensors.shared_tensor import SharedTensor

# Copied by numpy, which frees the interpreter's lock meanwhile.
_LARGE = 1 << 20


class EncodedFrame(msgspec.Struct, eq=False):
    """A frame with tensors: `start` and then `body`, whose bytes are so many."""

    start: bytes
    body: Sequence[Buffer]
    body_size: int


class TensorColumn(msgspec.Struct, eq=False):
    """The tensors of one frame to a worker, their bytes still where they are; `size` bytes when they are together.

    `runs` are its column, `schemas` the texts of its schemas, and `parts` follow each other there, each something whose
    length is its size in bytes; tensors among them, if it `has_shared`, are still to be read.
    """

    size: int = 0
    runs: list[int] = []
    schemas: list[bytes] = []
    parts: list[Buffer | SharedTensor] = []
    has_shared: bool = False

    def add_padded(self, tensors: Sequence[Tensor], schema: Schema) -> None:
        """Add tensors between which there is something, or whose sizes the schema does not say."""
        self.size += schema.size
        for tensor, found in zip(tensors, schema.tensors, strict=True):
            padding = found.padding
            if found.datatype is DataType.BYTES:
                size = tensor.byte_size
                self.runs.append(size)
                self.size += aligned(size)
                padding = padding_of(size)
            self.parts.append(tensor if isinstance(tensor, SharedTensor) else tensor.data)
            if padding:
                self.parts.append(padding)

    def flatten(self) -> None:
        """Have parts whose length is their size, also where one is a view with another item size. Raises Internal."""
        self.parts = [part if isinstance(part, SharedTensor) else _flat(part) for part in self.parts]
        if sum(map(len, self.parts)) != self.size:
            raise Internal("a tensor has not as many bytes as its datatype and shape need")

    def copy_to(self, memory: memoryview) -> None:
        position = 0
        for part in self.parts:
            end = position + len(part)
            if isinstance(part, SharedTensor):
                part.read_into(memory[position:end])
            elif len(part) > _LARGE:
                np.copyto(np.frombuffer(memory[position:end], np.uint8), np.frombuffer(part, np.uint8))
            else:
                memory[position:end] = part
            position = end

    def frame(
        self, kind: int, head: dict[str, Any], *, before: Sequence[int] = (), is_elsewhere: bool = False
    ) -> EncodedFrame:
        """The frame; without a body if the bytes are elsewhere. `before` stands in front of the runs."""
        numbers = (*before, *self.runs)
        column = COLUMNS[len(numbers)](*numbers)
        schemas = self.schemas[0] if len(self.schemas) == 1 else b"".join(self.schemas)
        text = msgspec.json.encode(head) if head else b""
        if is_elsewhere:
            return EncodedFrame(pack(kind, text, column, schemas), (), 0)
        parts: Sequence[Any] = self.parts
        if self.has_shared:
            parts = [part.data if isinstance(part, SharedTensor) else part for part in parts]
        return EncodedFrame(pack(kind, text, column, schemas, self.size), parts, self.size)


def column_of(groups: Iterable[Sequence[Tensor]], known: Schemas) -> TensorColumn:
    """The tensors of requests or responses that follow each other.

    Raises:
        Internal: a tensor has not as many bytes as its datatype and shape need.
    """
    column = TensorColumn()
    runs, parts = column.runs, column.parts
    last: list[TensorKey] | None = None
    count_at = 0
    for tensors in groups:
        key: list[TensorKey] = []
        own: list[Buffer | SharedTensor] = []
        for tensor in tensors:  # a comprehension for each would be two calls more for every request
            key.append((tensor.name, tensor.datatype, tensor.shape))
            if isinstance(tensor, SharedTensor):
                own.append(tensor)
                column.has_shared = True
            else:
                own.append(tensor.data)
        if key != last:
            schema = known.by_key[tuple(key)]
            column.schemas.append(schema.data)
            count_at = len(runs) + 1
            runs += (len(schema.data), 0)
            last = key
        runs[count_at] += 1
        if schema.is_fixed and not schema.is_padded:
            parts += own
            column.size += schema.size
        else:
            column.add_padded(tensors, schema)
    try:
        is_flat = sum(map(len, parts)) == column.size
    except TypeError:  # a view without dimensions has no length
        is_flat = False
    if not is_flat:
        column.flatten()
    return column


def _flat(data: Buffer) -> Buffer:
    """The same bytes as a view whose length is their number."""
    if isinstance(data, memoryview) and (data.format != "B" or data.ndim != 1):
        return data.cast("B") if data.nbytes else b""
    return data


def frame_tensors(frame: Frame, schemas: Schemas) -> list[Tensor] | None:
    """The tensors of a frame that has one request or response, views of it; None where it has none.

    Raises:
        BrokenFrame: as `TensorReader`.
    """
    numbers: list[int] = frame.column.cast("q").tolist()
    if not numbers:
        return None
    reader = TensorReader(numbers, frame.schemas, schemas, frame.body)
    length, count = reader.next_run()
    if count != 1 or length < 0:
        raise BrokenFrame(f"its frame of kind {frame.kind} has a run of {count} with a schema of {length} bytes")
    [tensors] = reader.read(length, 1)
    if reader.position != len(numbers):
        raise BrokenFrame(f"its frame of kind {frame.kind} has more than one run")
    return tensors


class SharedMemory(msgspec.Struct, eq=False, frozen=True):
    """What the server sees of a segment. Where it is not lent, the next batch writes over it."""

    view: memoryview
    is_lent: bool


class TensorReader(msgspec.Struct, eq=False):
    """The tensors of a frame of a worker, one run after the other, in `memory`: `numbers` is its column, which is read
    up to `position`, and `schemas` the texts of its schemas. They are parts of the memory, views of it if it is a view;
    but those of BYTES from where `is_shared`, and all from what is not lent, are copies.

    Raises:
        BrokenFrame: anything points outside, or contradicts itself.
    """

    numbers: Sequence[int]
    schemas: bytes | memoryview
    known: Schemas
    memory: bytes | memoryview
    position: int = 0
    is_shared: bool = False
    is_lent: bool = True
    text_at: int = 0
    offset: int = 0
    placed: Mapping[int, int] = {}
    inputs: SharedMemory | None = None

    def note_placed(self, placed: Mapping[int, int], inputs: SharedMemory | None) -> None:
        """Tensors that would begin at the one place in the memory begin at the other in that of the inputs."""
        if inputs is None:
            raise BrokenFrame("it left outputs in shared memory that it does not have")
        self.placed = placed
        self.inputs = inputs

    def next_run(self) -> tuple[int, int]:
        """The length of its schema, or what stands there, and its count."""
        start = self.position
        self.position += 2
        if self.position > len(self.numbers):
            raise BrokenFrame(f"its answer has {len(self.numbers)} numbers, too few for what they announce")
        return self.numbers[start], self.numbers[start + 1]

    def read(self, length: int, count: int) -> list[list[Tensor]]:
        """The tensors of each request or response of a run, whose schema has a text of that length."""
        text_end = self.text_at + length
        if length < 0 or text_end > len(self.schemas):
            raise BrokenFrame(f"its answer has schemas of {len(self.schemas)} bytes, too few for what it announces")
        schema = self.known.by_text[bytes(self.schemas[self.text_at : text_end])]
        self.text_at = text_end
        if self.placed or not (self.is_lent and schema.is_fixed):
            return [[self._read_tensor(found) for found in schema.tensors] for _ in range(count)]
        memory, start, size = self.memory, self.offset, schema.size
        self.offset = start + count * size
        if self.offset > len(memory):
            raise self._beyond(schema.tensors[0], start, count * size)
        run = []
        for _ in range(count):
            tensors = []
            for name, datatype, shape, begin, end, _padding in schema.tensors:
                tensors.append(Tensor(name, datatype, shape, memory[start + begin : start + end]))
            run.append(tensors)
            start += size
        return run

    def _read_tensor(self, found: SchemaTensor) -> Tensor:
        name, datatype, shape, begin, end, _padding = found
        is_text = datatype is DataType.BYTES
        start = self.offset
        size = self._next_size(found) if is_text else end - begin
        self.offset = aligned(start + size)
        place = self.placed.get(start)
        data: Buffer
        if place is None:
            if start + size > len(self.memory):
                raise self._beyond(found, start, size)
            data = self.memory[start : start + size]
            is_lent, is_shared = self.is_lent, self.is_shared
        else:
            assert self.inputs is not None
            memory, is_lent = self.inputs.view, self.inputs.is_lent
            if not 0 <= place <= len(memory) - size:
                raise BrokenFrame(f"its output '{name}' of {size} bytes lies at {place} among the inputs")
            data = memory[place : place + size]
            is_shared = True
        # What the worker could change must not be other strings than those that were looked at.
        if not is_lent or (is_shared and is_text):
            data = np.frombuffer(data, np.uint8).copy().data if size > _LARGE else bytes(data)
        if is_text and not _holds_elements(data, math.prod(shape)):
            raise BrokenFrame(f"its output '{name}' of datatype BYTES and shape {list(shape)} has {size} bytes")
        return Tensor(name, datatype, shape, data)

    def _next_size(self, found: SchemaTensor) -> int:
        if self.position == len(self.numbers):
            raise BrokenFrame(f"its output '{found.name}' has no size")
        size = self.numbers[self.position]
        self.position += 1
        if size < 0:
            raise BrokenFrame(f"its output '{found.name}' has {size} bytes")
        return size

    def _beyond(self, found: SchemaTensor, start: int, size: int) -> BrokenFrame:
        return BrokenFrame(
            f"its output '{found.name}' of shape {list(found.shape)} is at {start}, {size} bytes long, in a memory of "
            f"{len(self.memory)} bytes"
        )


def _holds_elements(data: Buffer, count: int) -> bool:
    """Whether the raw layout of a BYTES tensor is sound and has `count` elements."""
    end = len(data)
    position = 0
    while position + 4 <= end:
        position += 4 + int.from_bytes(data[position : position + 4], "little")
        count -= 1
    return position == end and count == 0
