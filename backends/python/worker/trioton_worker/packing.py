"""Tensors between a model's objects and a frame's column, forms and body."""

from __future__ import annotations

from typing import AbstractSet, Any, Callable, List, Sequence, Tuple

from .connection import Buffer, Frame
from .forms import Form, FormKey, Forms, padding_of
from .frames import DATATYPE_BYTES, PLACED_BYTE_SIZE, aligned
from .tensors import Raw, Tensor

# Of a frame: the runs, their forms, and the body with its size.
Parts = Tuple[List[int], bytes, Sequence[Buffer], int]


class Packing:
    """The tensors of one frame, their bytes still where the model left them; `size` bytes when they are together."""

    __slots__ = ("_count_at", "_form", "_forms", "_key", "_known", "_parts", "_runs", "size")

    def __init__(self, known: Forms) -> None:
        self.size = 0
        self._known = known
        self._runs: list[int] = []
        self._forms: list[bytes] = []
        self._parts: list[Raw] = []
        # The run that grows: what its requests have in common, its form, if it has one, and where its count is.
        self._key: FormKey | int | None = None
        self._form: Form | None = None
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
            self._forms.append(found.data)
            self._begin(key, found, len(found.data))
        form = self._form
        assert form is not None  # that of the key
        self._runs[self._count_at] += 1
        self.size += form.size
        if form.is_plain:
            parts = self._parts
            for tensor in wanted:
                parts.append(tensor._array.tobytes() if type(tensor) is Tensor else tensor._raw())
        else:
            self._add_padded(wanted, form)

    def add_other(self, what: int) -> None:
        """Add a request that is answered otherwise, as `what` says."""
        if what != self._key:
            self._begin(what, None, what)
        self._runs[self._count_at] += 1

    def _begin(self, key: FormKey | int, form: Form | None, length: int) -> None:
        self._key = key
        self._form = form
        self._count_at = len(self._runs) + 1
        self._runs += (length, 0)

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
        return self._runs, b"".join(self._forms), self._parts, self.size


def read_tensors(frame: Frame, known: Forms, memory: Any, skipped: int = 0) -> list[list[Tensor]]:
    """The tensors of each request or response of a frame, in `memory`; `skipped` numbers stand in front of the runs."""
    column, texts = frame.column, frame.forms
    found: list[list[Tensor]] = []
    position, text_at, start = skipped, 0, 0
    while position < len(column):
        length, count = column[position], column[position + 1]
        position += 2
        text = texts[text_at : text_at + length]
        text_at += length
        form = known.by_text.get(text) or known.read(text)
        if form.is_fixed:
            found += form.read(memory, start, count)
            start += form.size * count
            continue
        for _ in range(count):
            tensors, start = form.read_variable(memory, start, column[position : position + form.sizes])
            position += form.sizes
            found.append(tensors)
    return found
