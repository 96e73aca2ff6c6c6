"""Tensors in the worker's frames: a pure codec, which trusts nothing that a worker sends.

How they lie there is described in `worker.trioton_worker.frames`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from backends.python.forms import Form, FormKey, Forms, FormTensor, padding_of
from backends.python.wire import BrokenFrame, Frame
from backends.python.worker.trioton_worker.frames import aligned, pack
from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.messages import Buffer, Tensor

# Copied by numpy, which frees the interpreter's lock meanwhile.
_LARGE = 1 << 20


class EncodedFrame(msgspec.Struct, eq=False):
    """A frame with tensors: `start` and then `body`, whose bytes are so many."""

    start: bytes
    body: Sequence[Buffer]
    body_size: int


class TensorColumn:
    """The tensors of one frame to a worker, their bytes still where they are; `size` bytes when they are together."""

    __slots__ = ("_forms", "_key", "_known", "_parts", "_run", "_runs", "size")

    def __init__(self, known: Forms) -> None:
        self.size = 0
        self._known = known
        self._runs: list[int] = []
        self._forms: list[bytes] = []
        self._parts: list[Buffer] = []
        # The run that grows: its form, and where its count is.
        self._key: FormKey | None = None
        self._run: tuple[Form, int] | None = None

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add the tensors of one request or response."""
        key: FormKey = []
        parts: list[Buffer] = []
        for tensor in tensors:  # a comprehension for each would be two calls more for every request
            key.append((tensor.name, tensor.datatype, tensor.shape))
            parts.append(tensor.data)
        if self._run is None or key != self._key:
            form = self._known.of(key)
            self._forms.append(form.data)
            self._runs += (len(form.data), 0)
            self._run = form, len(self._runs) - 1
            self._key = key
        form, count_at = self._run
        self._runs[count_at] += 1
        if form.is_fixed and not form.is_padded:
            self._parts += parts
            self.size += form.size
        else:
            self._add_padded(tensors, form)

    def _add_padded(self, tensors: Sequence[Tensor], form: Form) -> None:
        self.size += form.size
        for tensor, found in zip(tensors, form.tensors, strict=True):
            padding = found.padding
            if found.datatype is DataType.BYTES:
                size = tensor.byte_size
                self._runs.append(size)
                self.size += aligned(size)
                padding = padding_of(size)
            self._parts.append(tensor.data)
            if padding:
                self._parts.append(padding)

    def copy_to(self, memory: memoryview) -> None:
        """Raises Internal, as `frame`."""
        position = 0
        for part in self._body():
            end = position + len(part)
            if len(part) > _LARGE:
                np.copyto(np.frombuffer(memory[position:end], np.uint8), np.frombuffer(part, np.uint8))
            else:
                memory[position:end] = part
            position = end

    def frame(
        self, kind: int, head: dict[str, Any], *, before: Sequence[int] = (), is_elsewhere: bool = False
    ) -> EncodedFrame:
        """The frame; without a body if the bytes are elsewhere. `before` stands in front of the runs.

        Raises:
            Internal: a tensor has not as many bytes as its datatype and shape need.
        """
        column = array("q", (*before, *self._runs)).tobytes()
        size = 0 if is_elsewhere else self.size
        start = pack(kind, msgspec.json.encode(head) if head else b"", column, b"".join(self._forms), size)
        return EncodedFrame(start, () if is_elsewhere else self._body(), size)

    def _body(self) -> Sequence[Buffer]:
        """What follows each other there, each something whose length is its size in bytes."""
        try:
            if sum(map(len, self._parts)) == self.size:
                return self._parts
        except TypeError:  # a view without dimensions has no length
            pass
        self._parts = [_flat(part) for part in self._parts]
        if sum(map(len, self._parts)) != self.size:
            raise Internal("a tensor has not as many bytes as its datatype and shape need")
        return self._parts


def _flat(data: Buffer) -> Buffer:
    """The same bytes in a form whose length is their number."""
    if isinstance(data, memoryview) and (data.format != "B" or data.ndim != 1):
        return data.cast("B") if data.nbytes else b""
    return data


def frame_tensors(frame: Frame, forms: Forms) -> list[Tensor] | None:
    """The tensors of a frame that has one request or response, views of it; None where it has none.

    Raises:
        BrokenFrame: as `TensorReader`.
    """
    reader = TensorReader(frame, forms, frame.body)
    if reader.is_at_end:
        return None
    length, count = reader.next_run()
    if count != 1 or length < 0:
        raise BrokenFrame(f"its frame of kind {frame.kind} has a run of {count} with a form of {length} bytes")
    tensors = reader.read(reader.next_form(length))
    if not reader.is_at_end:
        raise BrokenFrame(f"its frame of kind {frame.kind} has more than one run")
    return tensors


class TensorReader:
    """The tensors of a frame of a worker, one run after the other, in `memory`; `column` is what stands in front of the
    runs and they. With `is_copied` they are copies.

    Raises:
        BrokenFrame: anything points outside, or contradicts itself.
    """

    __slots__ = (
        "_forms",
        "_inputs",
        "_is_copied",
        "_known",
        "_memory",
        "_numbers",
        "_offset",
        "_placed",
        "_position",
        "_text_at",
    )

    def __init__(
        self, frame: Frame, known: Forms, memory: memoryview, *, skipped: int = 0, is_copied: bool = False
    ) -> None:
        self._numbers: list[int] = frame.column.cast("q").tolist()
        self._forms = frame.forms
        self._known = known
        self._memory = memory
        self._is_copied = is_copied
        self._position = skipped
        self._text_at = 0
        self._offset = 0
        self._placed: Mapping[int, int] = {}
        self._inputs = memoryview(b"")

    def note_placed(self, placed: Mapping[int, int], inputs: memoryview | None) -> None:
        """Tensors that would begin at the one place in the memory begin at the other in that of the inputs."""
        if inputs is None or not self._is_copied:
            raise BrokenFrame("it left outputs in shared memory that it does not have")
        self._placed = placed
        self._inputs = inputs

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._numbers)

    def next_run(self) -> tuple[int, int]:
        """The length of its form, or what stands there, and its count."""
        start = self._position
        self._position += 2
        if self._position > len(self._numbers):
            raise BrokenFrame(f"its answer has {len(self._numbers)} numbers, too few for what they announce")
        return self._numbers[start], self._numbers[start + 1]

    def next_form(self, length: int) -> Form:
        """The one whose text has that length."""
        start = self._text_at
        self._text_at += length
        if self._text_at > len(self._forms):
            raise BrokenFrame(f"its answer has forms of {len(self._forms)} bytes, too few for what it announces")
        return self._known.read(bytes(self._forms[start : self._text_at]))

    def read(self, form: Form) -> list[Tensor]:
        """The tensors of one more request or response."""
        if not form.is_fixed or self._is_copied:
            return [self._read_tensor(found) for found in form.tensors]
        start = self._offset
        self._offset = start + form.size
        if self._offset > len(self._memory):
            raise self._beyond(form.tensors[0], form.size)
        memory = self._memory[start : self._offset]
        return [
            Tensor(found.name, found.datatype, found.shape, memory[found.start : found.end]) for found in form.tensors
        ]

    def _read_tensor(self, found: FormTensor) -> Tensor:
        start = self._offset
        size = self._next_size(found) if found.datatype is DataType.BYTES else found.end - found.start
        if start + size > len(self._memory):
            raise self._beyond(found, size)
        self._offset = aligned(start + size)
        data: Buffer = self._memory[start : start + size]
        place = self._placed.get(start)
        if place is not None:
            if not 0 <= place <= len(self._inputs) - size:
                raise BrokenFrame(f"its output '{found.name}' of {size} bytes lies at {place} among the inputs")
            data = self._inputs[place : place + size]
        if self._is_copied:
            data = np.frombuffer(data, np.uint8).copy().data if size > _LARGE else bytes(data)
        if found.datatype is DataType.BYTES and not _holds_elements(data, math.prod(found.shape)):
            raise BrokenFrame(
                f"its output '{found.name}' of datatype BYTES and shape {list(found.shape)} has {size} bytes"
            )
        return Tensor(found.name, found.datatype, found.shape, data)

    def _next_size(self, found: FormTensor) -> int:
        if self.is_at_end:
            raise BrokenFrame(f"its output '{found.name}' has no size")
        size = self._numbers[self._position]
        self._position += 1
        if size < 0:
            raise BrokenFrame(f"its output '{found.name}' has {size} bytes")
        return size

    def _beyond(self, found: FormTensor, size: int) -> BrokenFrame:
        return BrokenFrame(
            f"its output '{found.name}' of shape {list(found.shape)} is at {self._offset}, {size} bytes long, in a "
            f"memory of {len(self._memory)} bytes"
        )


def _holds_elements(data: Buffer, count: int) -> bool:
    """Whether the raw layout of a BYTES tensor is sound and has `count` elements."""
    end = len(data)
    position = 0
    while position + 4 <= end:
        position += 4 + int.from_bytes(data[position : position + 4], "little")
        count -= 1
    return position == end and count == 0
