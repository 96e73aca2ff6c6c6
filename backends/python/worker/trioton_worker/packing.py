"""Tensors between a model's objects and a frame's column and body."""

from __future__ import annotations

from typing import Any, Iterable

from .connection import Buffer
from .frames import ALIGNMENT, aligned
from .tensors import Raw, Tensor, received_tensor

_PADDING = bytes(ALIGNMENT)


class Packing:
    """The tensors of one frame, their bytes still where the model left them."""

    def __init__(self) -> None:
        self.column: list[int] = []
        self.size = 0
        self._parts: list[tuple[int, Raw]] = []  # offset and bytes
        self._names: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Describe the tensors of one request or response."""
        column = self.column
        start = len(column)
        column.append(0)
        for tensor in tensors:
            data = tensor._raw()
            size = len(data)
            shape = tensor._shape
            name = self._names.setdefault(tensor._name, len(self._names))
            column += (name, tensor._number, self.size, size, len(shape), *shape)
            column[start] += 1
            if size:
                self._parts.append((self.size, data))
                self.size = aligned(self.size + size)

    def copy_to(self, memory: memoryview) -> None:
        for offset, data in self._parts:
            memory[offset : offset + len(data)] = data

    def body(self, *, is_copied: bool = False) -> list[Buffer]:
        """The bytes as they follow each other in a frame, `size` in all; `is_copied` lets go of the tensors' memory."""
        body: list[Buffer] = []
        for _, data in self._parts:
            body.append(bytes(data) if is_copied else data)
            over = len(data) % ALIGNMENT
            if over:
                body.append(_PADDING[over:])
        return body


def unpack(column: list[int], position: int, names: list[str], memory: Any) -> tuple[list[Tensor], int]:
    """The tensors of the request or response that is described from `position` on, and the position behind it."""
    count = column[position]
    position += 1
    tensors = []
    for _ in range(count):
        name, number, offset, size, rank = column[position : position + 5]
        position += 5 + rank
        shape = column[position - rank : position]
        tensors.append(received_tensor(names[name], number, shape, memory, offset, size))
    return tensors, position
