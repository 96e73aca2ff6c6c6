"""Packed contents: long typed contents of floats, taken out of a serialized ModelInferRequest as they are.

Pure. Protobuf packs repeated floats as the raw layout has them, so a view of the received bytes is the tensor's data.
Parsed, each would become a Python object, and 64 MB of them hold everything else up for seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.grpc.codec.wire import Field, encode_varint, field_start, top_level_fields

# A shorter field is parsed.
LONG_ABOVE = 1 << 14
INPUTS = 5
_CONTENTS = 5
# Of InferTensorContents, by field number.
_FLOATS = {6: DataType.FP32, 7: DataType.FP64}
_NO_CONTENTS = field_start(_CONTENTS, 0)


class PackedContents(NamedTuple):
    """The elements of an input, and the datatype that their field is for."""

    datatype: DataType
    data: memoryview

    def raw(self, where: str, datatype: DataType) -> memoryview:
        """The raw layout. Raises InvalidArgument, which says where: the tensor's datatype is another one."""
        if datatype is not self.datatype:
            raise InvalidArgument(f"{where} of type '{self.datatype.name}', expected datatype '{datatype.name}'")
        return self.data


def cut_contents(
    data: memoryview, fields: Sequence[Field]
) -> tuple[dict[int, list[memoryview | bytes]], dict[int, PackedContents]]:
    """By the place of an input's field among `fields`: what is to stand for it, with empty contents; and by the place
    of the input among all inputs: its contents."""
    parts: dict[int, list[memoryview | bytes]] = {}
    found: dict[int, PackedContents] = {}
    count = 0
    for place, field in enumerate(fields):
        if field.number != INPUTS or not field.is_delimited:
            continue
        cut = _cut(data[field.value : field.end]) if field.end - field.value > LONG_ABOVE else None
        if cut is not None:
            rest, contents = cut
            size = sum(map(len, rest))
            parts[place] = [encode_varint(INPUTS << 3 | 2) + encode_varint(size), *rest]
            found[count] = contents
        count += 1
    return parts, found


def _cut(tensor: memoryview) -> tuple[list[memoryview | bytes], PackedContents] | None:
    """None where the contents are anything but one packed field of floats, which a parser then has to put together."""
    fields = top_level_fields(tensor)
    contents = [field for field in fields or () if field.number == _CONTENTS]
    if len(contents) != 1 or not contents[0].is_delimited:
        return None
    (field,) = contents
    inside = tensor[field.value : field.end]
    elements = top_level_fields(inside)
    if elements is None or len(elements) != 1 or not elements[0].is_delimited:
        return None
    datatype = _FLOATS.get(elements[0].number)
    packed = inside[elements[0].value : elements[0].end]
    if datatype is None or not packed or len(packed) % datatype.itemsize:
        return None
    return [tensor[: field.start], _NO_CONTENTS, tensor[field.end :]], PackedContents(datatype, packed)
