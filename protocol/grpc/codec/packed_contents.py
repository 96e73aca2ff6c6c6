"""Packed contents: long typed contents of floats, taken out of a serialized ModelInferRequest as they are.

Pure. Protobuf packs repeated floats as the raw layout has them, so a view of the received bytes is the tensor's data.
Parsed, each would become a Python object, and 64 MB of them hold everything else up for seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.grpc.codec.wire import Field, encode_varint, field_start, top_level_fields

# A shorter field is parsed.
LONG_ABOVE = 1 << 14
INPUTS = 5
CONTENTS = 5
# Of InferTensorContents, by field number.
_FLOATS = {6: DataType.FP32, 7: DataType.FP64}
_NO_CONTENTS = field_start(CONTENTS, 0)
_NONE_NARROWER: frozenset[DataType] = frozenset()


class PackedContents(NamedTuple):
    """The elements of an input, and the datatype that their field is for, with those of fewer bits that it also has.
    `element_count` says how many there are, where they have been counted."""

    datatype: DataType
    data: memoryview
    narrower: frozenset[DataType] = _NONE_NARROWER
    element_count: int = -1

    def raw(self, where: str, datatype: DataType) -> memoryview:
        """The raw layout. Raises InvalidArgument, which says where: the tensor's datatype is another one."""
        if datatype in self.narrower:
            wide = np.frombuffer(self.data, self.datatype.dtype)
            return wide.astype(datatype.dtype.newbyteorder("<")).view(np.uint8).data
        if datatype is not self.datatype:
            raise InvalidArgument(f"{where} of type '{self.datatype.name}', expected datatype '{datatype.name}'")
        return self.data


Cut: TypeAlias = tuple[dict[int, list[memoryview | bytes]], dict[int, PackedContents]]
"""By the place of an input's field among those of a request: what is to stand for it, with empty contents; and by the
place of the input among all inputs: its contents."""


def cut_contents(data: memoryview, fields: Sequence[Field]) -> Cut:
    """Those of floats."""
    parts: dict[int, list[memoryview | bytes]] = {}
    found: dict[int, PackedContents] = {}
    for place, count, tensor in long_inputs(data, fields):
        contents = contents_of(tensor)
        elements = None if contents is None else _floats(tensor[contents.value : contents.end])
        if contents is not None and elements is not None:
            parts[place], found[count] = without_contents(tensor, contents), elements
    return parts, found


def long_inputs(
    data: memoryview, fields: Sequence[Field], above: int | None = None
) -> Iterator[tuple[int, int, memoryview]]:
    """Those longer than so many bytes, `LONG_ABOVE` else: the place of the field of each, and that of the input, and
    its message."""
    least = LONG_ABOVE if above is None else above
    count = 0
    for place, field in enumerate(fields):
        if field.number == INPUTS and field.is_delimited:
            if field.end - field.value > least:
                yield place, count, data[field.value : field.end]
            count += 1


def contents_of(tensor: memoryview) -> Field | None:
    """None where there is not one field of them, which a parser then has to put together."""
    contents = [field for field in top_level_fields(tensor) or () if field.number == CONTENTS]
    return contents[0] if len(contents) == 1 and contents[0].is_delimited else None


def without_contents(tensor: memoryview, contents: Field) -> list[memoryview | bytes]:
    """The field of an input, in parts."""
    rest: list[memoryview | bytes] = [tensor[: contents.start], _NO_CONTENTS, tensor[contents.end :]]
    return [encode_varint(INPUTS << 3 | 2) + encode_varint(sum(map(len, rest))), *rest]


def _floats(inside: memoryview) -> PackedContents | None:
    """None for anything but one packed field of floats."""
    elements = top_level_fields(inside)
    if elements is None or len(elements) != 1 or not elements[0].is_delimited:
        return None
    return floats_of(elements[0].number, inside[elements[0].value : elements[0].end])


def floats_of(number: int, packed: memoryview) -> PackedContents | None:
    """Those of a packed field of this number; None where it is not for floats."""
    datatype = _FLOATS.get(number)
    if datatype is None or not packed or len(packed) % datatype.itemsize:
        return None
    return PackedContents(datatype, packed)
