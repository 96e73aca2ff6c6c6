"""Tensors between a model's objects and a frame's column, forms and body."""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence, Tuple

from .connection import Buffer, Frame
from .forms import Form, FormKey, Forms, padding_of
from .frames import DATATYPE_BYTES, aligned
from .tensors import Raw, Tensor, encoded_tensor, viewed_tensor

# Of a frame: the runs, their forms, and the body with its size.
Parts = Tuple[List[int], bytes, Sequence[Buffer], int]


class Packing:
    """The tensors of one frame, their bytes still where the model left them; `size` bytes when they are together."""

    __slots__ = ("_forms", "_key", "_known", "_parts", "_run", "_runs", "size")

    def __init__(self, known: Forms) -> None:
        self.size = 0
        self._known = known
        self._runs: list[int] = []
        self._forms: list[bytes] = []
        self._parts: list[Raw] = []
        # The run that grows: its form, or what stands in its place, and where its count is.
        self._key: FormKey | int | None = None
        self._run: tuple[Form | None, int] = None, 0

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add the tensors of one request or response."""
        key = [(tensor._name, tensor._number, tensor._shape) for tensor in tensors]
        form, count_at = self._run
        if key != self._key:
            form = self._known.of(key)
            self._forms.append(form.data)
            count_at = self._begin(key, form, len(form.data))
        self._runs[count_at] += 1
        assert form is not None  # that of the key
        self.size += form.size
        if form.is_fixed and not form.is_padded:
            self._parts += [tensor._raw() for tensor in tensors]
        else:
            self._add_padded(tensors, form)

    def add_other(self, what: int) -> None:
        """Add a request that is answered otherwise."""
        if what != self._key:
            self._begin(what, None, what)
        self._runs[self._run[1]] += 1

    def _begin(self, key: FormKey | int, form: Form | None, length: int) -> int:
        self._runs += (length, 0)
        self._key = key
        self._run = form, len(self._runs) - 1
        return len(self._runs) - 1

    def _add_padded(self, tensors: Sequence[Tensor], form: Form) -> None:
        for tensor, found in zip(tensors, form.tensors):
            data = tensor._raw()
            padding = found.padding
            if found.number == DATATYPE_BYTES:
                self._runs.append(len(data))
                self.size += aligned(len(data))
                padding = padding_of(len(data))
            self._parts.append(data)
            if padding:
                self._parts.append(padding)

    def copy_to(self, memory: memoryview) -> None:
        position = 0
        for part in self._parts:
            memory[position : position + len(part)] = part
            position += len(part)

    def parts(self) -> Parts:
        """For a frame that has the tensors in it."""
        return self._runs, b"".join(self._forms), self._parts, self.size

    def parts_let_go(self, *, is_elsewhere: bool) -> Parts:
        """The same without the tensors' memory: with a copy of it, or with nothing if they are elsewhere."""
        parts, self._parts = self._parts, []
        forms = b"".join(self._forms)
        return (self._runs, forms, (), 0) if is_elsewhere else (self._runs, forms, [b"".join(parts)], self.size)


class Unpacking:
    """The tensors of a frame, one run after the other, in `memory`; `skipped` numbers stand in front of the runs."""

    __slots__ = ("_column", "_known", "_memory", "_offset", "_position", "_text_at", "_texts")

    def __init__(self, frame: Frame, known: Forms, memory: Any, *, skipped: int = 0) -> None:
        self._column = frame.column
        self._texts = frame.forms
        self._known = known
        self._memory = memory
        self._position = skipped
        self._text_at = 0
        self._offset = 0

    def __iter__(self) -> Iterator[list[Tensor]]:
        """The tensors of each request or response."""
        column = self._column
        while self._position < len(column):
            length, count = column[self._position : self._position + 2]
            self._position += 2
            form = self._known.read(self._texts[self._text_at : self._text_at + length])
            self._text_at += length
            yield from self._fixed(form, count) if form.is_fixed else self._variable(form, count)

    def _fixed(self, form: Form, count: int) -> Iterator[list[Tensor]]:
        """All at once: so one array is made for each input of the run, and cut into those of the requests."""
        start, stride = self._offset, form.size
        self._offset += stride * count
        columns = [
            [
                viewed_tensor(tensor.name, tensor.number, tensor.shape, array)
                for array in tensor.arrays(self._memory, start, count, stride)
            ]
            for tensor in form.tensors
        ]
        return map(list, zip(*columns)) if columns else iter([[] for _ in range(count)])

    def _variable(self, form: Form, count: int) -> Iterator[list[Tensor]]:
        for _ in range(count):
            tensors = []
            for tensor in form.tensors:
                start = self._offset
                if tensor.number == DATATYPE_BYTES:
                    size = self._column[self._position]
                    self._position += 1
                    data = self._memory[start : start + size]
                    tensors.append(encoded_tensor(tensor.name, tensor.shape, data))
                else:
                    size = tensor.size
                    array = tensor.array(self._memory, start)
                    tensors.append(viewed_tensor(tensor.name, tensor.number, tensor.shape, array))
                self._offset = aligned(start + size)
            yield tensors
