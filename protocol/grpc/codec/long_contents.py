"""Long typed contents in slices: a ModelInferRequest whose integers and texts become raw layouts, and no objects.

Pure. Protobuf has integers in as many bytes as each needs, and texts as a field each: a million of them take a parser
and what follows half a second in one go. The request is the same as that of `codec.infer`, which also reads whatever is
unusual here: contents of several fields, or broken ones. A large one of these is refused.
"""

from __future__ import annotations

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.grpc.codec.infer import RAW_INPUT_CONTENTS, WireRequest, joined_request, parse_request
from protocol.grpc.codec.number_contents import numbers
from protocol.grpc.codec.packed_contents import (
    CONTENTS,
    INPUTS,
    Cut,
    PackedContents,
    contents_of,
    long_inputs,
    without_contents,
)
from protocol.grpc.codec.wire import MAX_FIELDS, Field, read_varint, top_level_fields
from protocol.shapes import MAX_RANK
from protocol.sync.joined import join
from protocol.sync.sliced import Sliced

# Of a request whose contents may be long.
_LARGE_ABOVE = 1 << 16
# Of small inputs, and all else that is parsed.
_REST_ABOVE = 1 << 16
# What is unusual is parsed in one go up to here.
_PARSED_UP_TO = 1 << 18
# Of a large request smaller inputs are cut, too: there may be thousands.
_SMALL_INPUT = 1 << 6
# Of all inputs together, elements aside.
_MOST_FIELDS = 4 * MAX_FIELDS
_MOST_SHAPE_BYTES = 11 * MAX_RANK
_TEXTS = 1 << 8
_LONG_TEXT = 1 << 14
_SHAPE = 3
_TEXT_KEY = 8 << 3 | 2
_FLOAT_KEYS = (bytes([6 << 3 | 2]), bytes([7 << 3 | 2]))


class LongContents(Exception):
    """A request is to be read by `parse_long_request`."""


def has_long_contents(data: memoryview) -> bool:
    """Whether a request is to be read by `parse_long_request`: those of floats need no slices."""
    if len(data) <= _LARGE_ABOVE:
        return False
    fields = top_level_fields(data)
    if fields is None:
        return True
    rest = sum([field.end - field.start for field in fields if field.number != RAW_INPUT_CONTENTS])
    for _, _, tensor in long_inputs(data, fields):
        contents = contents_of(tensor)
        if contents is None or bytes(tensor[contents.value : contents.end][:1]) not in _FLOAT_KEYS:
            return True
        rest -= len(tensor)
    return rest > _REST_ABOVE


def parse_long_request(data: memoryview) -> Sliced[WireRequest]:
    """As `parse_request`.

    Raises:
        InvalidArgument: it is no request, or a large one that only a parser could read, in one go.
    """
    fields = top_level_fields(data)
    if fields is None:
        return _in_one_go(data, f"more than {MAX_FIELDS} fields, or broken ones")
    _check_rest(data, fields)
    cut = yield from _cut(data, fields)
    if cut is None:
        return _in_one_go(data, "an input whose contents are in several fields, or in broken ones")
    return joined_request(data, fields, cut)


def _in_one_go(data: memoryview, unusual: str) -> WireRequest:
    if len(data) > _PARSED_UP_TO:
        raise InvalidArgument(
            f"the request of {len(data)} bytes has {unusual}: that is read up to {_PARSED_UP_TO} bytes; of a larger "
            "request, the contents of each input are expected in one field, or in raw_input_contents"
        )
    return parse_request(data)


def _check_rest(data: memoryview, fields: list[Field]) -> None:
    """Nothing but inputs and raw contents is made of very many fields."""
    for field in fields:
        if field.number in (INPUTS, RAW_INPUT_CONTENTS) or field.end - field.value <= _PARSED_UP_TO:
            continue
        if top_level_fields(data[field.value : field.end]) is None:
            raise InvalidArgument(
                f"field {field.number} of the request, of {field.end - field.value} bytes, has more than {MAX_FIELDS} "
                "fields, or broken ones"
            )


def _cut(data: memoryview, fields: list[Field]) -> Sliced[Cut | None]:
    """None where one cannot be cut."""
    parts: dict[int, list[memoryview | bytes]] = {}
    found: dict[int, PackedContents] = {}
    left = _MOST_FIELDS
    for place, count, tensor in long_inputs(data, fields, above=_SMALL_INPUT):
        inside = top_level_fields(tensor)
        if inside is None:
            return None
        left -= len(inside)
        _check_input(count, inside, left)
        contents = [field for field in inside if field.number == CONTENTS]
        if len(contents) > 1 or any(not field.is_delimited for field in contents):
            return None
        if contents:
            elements = yield from _elements(tensor[contents[0].value : contents[0].end])
            if elements is None:
                return None
            parts[place], found[count] = without_contents(tensor, contents[0]), elements
        yield
    return parts, found


def _check_input(place: int, inside: list[Field], left: int) -> None:
    """What a parser would make of it, its contents aside, is bounded."""
    if left < 0:
        raise InvalidArgument(f"the inputs of the request have more than {_MOST_FIELDS} fields")
    for field in inside:
        if field.number == _SHAPE and field.end - field.value > _MOST_SHAPE_BYTES:
            raise InvalidArgument(
                f"invalid shape for input {place}: expected at most {MAX_RANK} dimensions, got "
                f"{field.end - field.value} bytes of them"
            )


def _elements(inside: memoryview) -> Sliced[PackedContents | None]:
    """None for none, those of several fields, or broken ones."""
    if not inside:
        return None
    return (yield from (_texts(inside) if inside[0] == _TEXT_KEY else numbers(inside)))


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
        if not count % _TEXTS or size > _LONG_TEXT:
            pieces.append(b"".join(parts))
            parts.clear()
            yield
    pieces.append(b"".join(parts))
    return PackedContents(DataType.BYTES, (yield from join(pieces)), element_count=count)
