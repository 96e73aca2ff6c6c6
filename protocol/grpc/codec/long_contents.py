"""Long typed contents in slices: a ModelInferRequest whose integers and texts become raw layouts, and no objects.

Pure. Protobuf has integers in as many bytes as each needs, and texts as a field each: a million of them take a parser
and what follows half a second in one go. The request is the same as that of `codec.infer`, which also reads whatever is
unusual here: contents of several fields, or broken ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.datatypes import DataType
from protocol.grpc.codec.infer import WireRequest, joined_request, parse_request
from protocol.grpc.codec.packed_contents import (
    Cut,
    PackedContents,
    contents_of,
    floats_of,
    long_inputs,
    without_contents,
)
from protocol.grpc.codec.wire import Field, read_varint, top_level_fields
from protocol.sync.joined import join
from protocol.sync.sliced import Sliced

# Of a request whose contents may be long.
_LARGE_ABOVE = 1 << 16
_WINDOW = 1 << 14
_TEXTS = 1 << 8
_MOST_VARINT = 10
_TEXT_KEY = 8 << 3 | 2
_FLOAT_KEYS = (bytes([6 << 3 | 2]), bytes([7 << 3 | 2]))
# Of InferTensorContents, by field number.
_INTEGERS = {
    1: (DataType.BOOL, ()),
    2: (DataType.INT32, (DataType.INT8, DataType.INT16)),
    3: (DataType.INT64, ()),
    4: (DataType.UINT32, (DataType.UINT8, DataType.UINT16)),
    5: (DataType.UINT64, ()),
}


class LongContents(Exception):
    """A request is to be read by `parse_long_request`."""


def has_long_contents(data: memoryview) -> bool:
    """Whether a request is to be read by `parse_long_request`: those of floats need no slices."""
    fields = top_level_fields(data) if len(data) > _LARGE_ABOVE else None
    for _, _, tensor in long_inputs(data, fields or ()):
        contents = contents_of(tensor)
        if contents is None or bytes(tensor[contents.value : contents.end][:1]) not in _FLOAT_KEYS:
            return True
    return False


def parse_long_request(data: memoryview) -> Sliced[WireRequest]:
    """As `parse_request`."""
    fields = top_level_fields(data)
    cut = None if fields is None else (yield from _cut(data, fields))
    return parse_request(data) if fields is None or cut is None else joined_request(data, fields, cut)


def _cut(data: memoryview, fields: list[Field]) -> Sliced[Cut | None]:
    """None where one cannot be cut."""
    parts: dict[int, list[memoryview | bytes]] = {}
    found: dict[int, PackedContents] = {}
    for place, count, tensor in long_inputs(data, fields):
        contents = contents_of(tensor)
        if contents is None:
            return None
        inside = tensor[contents.value : contents.end]
        is_text = bool(inside) and inside[0] == _TEXT_KEY
        elements = yield from (_texts(inside) if is_text else _numbers(inside))
        if elements is None:
            return None
        parts[place], found[count] = without_contents(tensor, contents), elements
        yield
    return parts, found


def _texts(inside: memoryview) -> Sliced[PackedContents | None]:
    """None where there is anything else."""
    position, end, count = 0, len(inside), 0
    pieces: list[bytes] = []
    parts: list[bytes | memoryview] = []
    while position < end:
        if inside[position] != _TEXT_KEY:
            return None
        size, start = read_varint(inside, position + 1)
        position = start + size
        if position > end:
            return None
        parts += (size.to_bytes(4, "little"), inside[start:position])
        count += 1
        if not count % _TEXTS or size > _WINDOW:
            pieces.append(b"".join(parts))
            parts.clear()
            yield
    pieces.append(b"".join(parts))
    return PackedContents(DataType.BYTES, (yield from join(pieces)), element_count=count)


def _numbers(inside: memoryview) -> Sliced[PackedContents | None]:
    """None for anything but one packed field of numbers."""
    fields = top_level_fields(inside)
    if fields is None or len(fields) != 1 or not fields[0].is_delimited:
        return None
    packed = inside[fields[0].value : fields[0].end]
    if fields[0].number not in _INTEGERS:
        return floats_of(fields[0].number, packed)
    if not packed:
        return None
    datatype, narrower = _INTEGERS[fields[0].number]
    pieces: list[bytes] = []
    position = count = 0
    while position < len(packed):
        window = np.frombuffer(packed[position : position + _WINDOW], np.uint8)
        values = _varints(window)
        if values is None:
            return None
        position += values[1]
        count += len(values[0])
        pieces.append(_narrowed(values[0], datatype).tobytes())
        yield
    return PackedContents(datatype, (yield from join(pieces)), frozenset(narrower), count)


def _varints(window: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], int] | None:
    """Those that end within the window, and how many bytes they have; None for none, or one that is too long."""
    ends = np.flatnonzero(window < 0x80)
    if not len(ends):
        return None
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    sizes = ends - starts + 1
    most = int(sizes.max())
    if most > _MOST_VARINT or (most == _MOST_VARINT and window[ends[sizes == most]].max() > 1):
        return None
    values = (window[starts] & 0x7F).astype(np.uint64)
    for place in range(1, most):
        longer = sizes > place
        values[longer] |= (window[starts[longer] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return values, int(ends[-1]) + 1


def _narrowed(values: NDArray[np.uint64], datatype: DataType) -> NDArray[Any]:
    """As protobuf takes them: of a field for fewer bits, the last ones."""
    if datatype is DataType.BOOL:
        is_true: NDArray[np.bool_] = values != 0
        return is_true
    return values.astype("<u4" if datatype.itemsize == 4 else "<u8")
