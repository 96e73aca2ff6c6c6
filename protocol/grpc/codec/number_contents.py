"""Numbers of typed contents, from the wire to the raw layout in slices: packed, each in a field of its own, or both.

Pure. What protobuf has in as many bytes as each needs is read by numpy, a window at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.datatypes import DataType
from protocol.grpc.codec.packed_contents import PackedContents, floats_of
from protocol.grpc.codec.wire import MAX_FIELDS, read_varint
from protocol.messages import Buffer
from protocol.sync.joined import join
from protocol.sync.sliced import Sliced

_WINDOW = 1 << 14
_MOST_VARINT = 10
# Wire types.
_VARINT, _FIXED_64, _DELIMITED, _FIXED_32 = 0, 1, 2, 5


class _Kind(NamedTuple):
    """A field of numbers: `wire` is how one has them that are not packed."""

    datatype: DataType
    narrower: tuple[DataType, ...] = ()
    wire: int = _VARINT


# Of InferTensorContents, by field number.
_KINDS = {
    1: _Kind(DataType.BOOL),
    2: _Kind(DataType.INT32, (DataType.INT8, DataType.INT16)),
    3: _Kind(DataType.INT64),
    4: _Kind(DataType.UINT32, (DataType.UINT8, DataType.UINT16)),
    5: _Kind(DataType.UINT64),
    6: _Kind(DataType.FP32, wire=_FIXED_32),
    7: _Kind(DataType.FP64, wire=_FIXED_64),
}


def numbers(inside: memoryview) -> Sliced[PackedContents | None]:
    """Those of one field, from the contents of an input, which are not empty. None where there is anything else, or
    nothing, or what is packed comes in thousands of parts."""
    number = inside[0] >> 3
    kind = _KINDS.get(number)
    if kind is None:
        return None
    packed_key, alone_key = number << 3 | _DELIMITED, number << 3 | kind.wire
    pieces: list[bytes | bytearray | memoryview] = []
    position, part_count = 0, 0
    while position < len(inside):
        part_count += 1
        if part_count > MAX_FIELDS:
            return None
        if inside[position] == packed_key:
            size, start = read_varint(inside, position + 1)
            position = start + size
            packed = inside[start:position]
            if position > len(inside) or not (yield from _packed(packed, kind, pieces)):
                return None
        elif inside[position] == alone_key:
            read = _alone_varints if kind.wire == _VARINT else _alone_floats
            count = yield from read(inside[position:], alone_key, kind.datatype, pieces)
            if not count:
                return None
            position += count
        else:
            return None
    if not pieces:
        return None
    if kind.wire != _VARINT and len(pieces) == 1:  # a view of what was received
        return floats_of(number, memoryview(pieces[0]))
    return PackedContents(kind.datatype, (yield from join(pieces)), frozenset(kind.narrower))


def _packed(packed: memoryview, kind: _Kind, pieces: list[bytes | bytearray | memoryview]) -> Sliced[bool]:
    """Whether they are what the field has."""
    if kind.wire != _VARINT:
        if packed:
            pieces.append(packed)
        yield
        return not len(packed) % kind.datatype.itemsize
    position = 0
    while position < len(packed):
        found = _varints(packed[position : position + _WINDOW])
        if found is None:
            return False
        pieces.append(_narrowed(found.values, kind.datatype))
        position += int(found.ends[-1]) + 1
        yield
    return True


def _alone_varints(
    rest: memoryview, key: int, datatype: DataType, pieces: list[bytes | bytearray | memoryview]
) -> Sliced[int]:
    """How many bytes fields with this key take, each with a number. A key is a varint, too, of one byte."""
    position = 0
    while position < len(rest):
        found = _varints(rest[position : position + _WINDOW])
        count = 0 if found is None else len(found.values) // 2
        if found is None or not count:
            break
        keys = slice(0, 2 * count, 2)
        fits = (found.values[keys] == key) & (found.sizes[keys] == 1)
        taken = count if fits.all() else int(fits.argmin())
        if not taken:
            break
        pieces.append(_narrowed(found.values[1 : 2 * taken : 2], datatype))
        position += int(found.ends[2 * taken - 1]) + 1
        yield
        if taken < count:
            break
    return position


def _alone_floats(
    rest: memoryview, key: int, datatype: DataType, pieces: list[bytes | bytearray | memoryview]
) -> Sliced[int]:
    """As `_alone_varints`."""
    position, size = 0, 1 + datatype.itemsize
    while count := min(_WINDOW, len(rest) - position) // size:
        rows = np.frombuffer(rest[position : position + count * size], np.uint8).reshape(count, size)
        fits = rows[:, 0] == key
        taken = count if fits.all() else int(fits.argmin())
        if taken:
            pieces.append(rows[:taken, 1:].tobytes())
        position += taken * size
        yield
        if taken < count:
            break
    return position


class _Varints(NamedTuple):
    """With the last byte of each in the window, and how many it has."""

    values: NDArray[np.uint64]
    ends: NDArray[np.intp]
    sizes: NDArray[np.intp]


def _varints(data: Buffer) -> _Varints | None:
    """Those that end within the window; None for none, or one that is too long."""
    window = np.frombuffer(data, np.uint8)
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
    return _Varints(values, ends, sizes)


def _narrowed(values: NDArray[np.uint64], datatype: DataType) -> bytes:
    """As protobuf takes them: of a field for fewer bits, the last ones."""
    if datatype is DataType.BOOL:
        is_true: NDArray[np.bool_] = values != 0
        return is_true.tobytes()
    return values.astype("<u4" if datatype.itemsize == 4 else "<u8").tobytes()
