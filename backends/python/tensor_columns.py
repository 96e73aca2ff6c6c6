"""Tensors in the worker's frames: a pure codec, which trusts nothing that a worker sends.

The columns are described in `worker.trioton_worker.frames`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from backends.python.wire import BrokenFrame, Frame
from backends.python.worker.trioton_worker.frames import ALIGNMENT, aligned, pack
from protocol.datatypes import DataType
from protocol.messages import Buffer, Tensor

_DATATYPES = {datatype.number: datatype for datatype in DataType if datatype is not DataType.INVALID}
_HIGHEST_RANK = 64  # numpy's
_PADDING = bytes(ALIGNMENT)
# Copied by numpy, which frees the interpreter's lock meanwhile.
_LARGE = 1 << 20


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """A frame with tensors: `start` and then `body`."""

    start: bytes
    body: Sequence[Buffer]


@dataclass(slots=True)
class TensorColumn:
    """The tensors of one frame to a worker, their bytes still where they are; `size` bytes when they are together."""

    numbers: list[int] = field(default_factory=list)
    size: int = 0
    _names: dict[str, int] = field(default_factory=dict)
    _parts: list[tuple[int, Buffer, int]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Describe the tensors of one request or response."""
        numbers, names, position = self.numbers, self._names, self.size
        numbers.append(len(tensors))
        for tensor in tensors:
            size = tensor.byte_size
            shape = tensor.shape
            name = names.setdefault(tensor.name, len(names))
            numbers += (name, tensor.datatype.number, position, size, len(shape))
            numbers += shape
            if size:
                self._parts.append((position, tensor.data, size))
                position = aligned(position + size)
        self.size = position

    def copy_to(self, memory: memoryview) -> None:
        for offset, data, size in self._parts:
            if size > _LARGE:
                np.copyto(np.frombuffer(memory, np.uint8, size, offset), np.frombuffer(data, np.uint8))
            else:
                memory[offset : offset + size] = _flat(data)

    def frame(self, kind: int, head: dict[str, Any], *, is_elsewhere: bool = False) -> EncodedFrame:
        """The frame; without a body if the bytes are elsewhere."""
        body: list[Buffer] = []
        if not is_elsewhere:
            for _, data, size in self._parts:
                body.append(data)
                if size % ALIGNMENT:
                    body.append(_PADDING[size % ALIGNMENT :])
        size = 0 if is_elsewhere else self.size
        return EncodedFrame(pack(kind, msgspec.json.encode(head), array("q", self.numbers).tobytes(), size), body)


def _flat(data: Buffer) -> Buffer:
    """The same bytes in a form that a view of bytes takes."""
    if isinstance(data, memoryview) and (data.format != "B" or data.ndim != 1):
        return data.cast("B") if data.nbytes else b""
    return data


def frame_tensors(frame: Frame, names: list[str]) -> list[Tensor]:
    """The tensors of a frame that has one request or response; views of it.

    Raises:
        BrokenFrame: as `decode_tensors`.
    """
    numbers: list[int] = frame.column.cast("q").tolist()
    if not numbers:
        return []
    tensors, position = decode_tensors(numbers, 1, numbers[0], names, frame.body)
    if position != len(numbers):
        raise BrokenFrame(f"its frame of kind {frame.kind} has {len(numbers) - position} numbers too many")
    return tensors


def decode_tensors(
    numbers: list[int], position: int, count: int, names: list[str], memory: memoryview, *, copy: bool = False
) -> tuple[list[Tensor], int]:
    """The `count` tensors that are described from `position` on, and the position behind them.

    Raises:
        BrokenFrame: anything points outside, or contradicts itself.
    """
    tensors: list[Tensor] = []
    while len(tensors) != count:  # a count that cannot be runs out of numbers
        tensor, position = _decode_tensor(numbers, position, names, memory, copy=copy)
        tensors.append(tensor)
    return tensors, position


def _decode_tensor(
    numbers: list[int], position: int, names: list[str], memory: memoryview, *, copy: bool
) -> tuple[Tensor, int]:
    shape_start = position + 5
    if shape_start > len(numbers):
        raise BrokenFrame(f"its answer has {len(numbers)} numbers, too few for what they announce")
    name, number, offset, size, rank = numbers[position:shape_start]
    end = shape_start + rank
    if not 0 <= rank <= _HIGHEST_RANK or end > len(numbers):
        raise BrokenFrame(f"its output has {rank} dimensions")
    shape = tuple(numbers[shape_start:end])
    datatype = _DATATYPES.get(number)
    if datatype is None or not 0 <= name < len(names):
        raise BrokenFrame(f"its output has the name {name} of {len(names)} and the datatype {number}")
    if offset < 0 or size < 0 or offset + size > len(memory) or (shape and min(shape) < 0):
        raise BrokenFrame(
            f"its output '{names[name]}' of shape {list(shape)} is at {offset}, {size} bytes long, in a memory of "
            f"{len(memory)} bytes"
        )
    data: Buffer = memory[offset : offset + size]
    if copy:
        data = np.frombuffer(data, np.uint8).copy().data if size > _LARGE else bytes(data)
    count = math.prod(shape)
    fits = _holds_elements(data, count) if datatype is DataType.BYTES else size == count * datatype.itemsize
    if not fits:
        raise BrokenFrame(
            f"its output '{names[name]}' of datatype {datatype.name} and shape {list(shape)} has {size} bytes"
        )
    return Tensor(names[name], datatype, shape, data), end


def _holds_elements(data: Buffer, count: int) -> bool:
    """Whether the raw layout of a BYTES tensor is sound and has `count` elements."""
    end = len(data)
    position = 0
    while position + 4 <= end:
        position += 4 + int.from_bytes(data[position : position + 4], "little")
        count -= 1
    return position == end and count == 0
