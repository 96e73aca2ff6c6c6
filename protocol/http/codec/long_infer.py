"""Codec of inference bodies whose JSON is long: as `codec.infer` reads them, in slices.

Pure. The long `data` arrays are parsed in pieces (`long_json`); what is refused, and with which words, is the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from protocol.datatypes import BY_PROTOCOL_NAME
from protocol.errors import InvalidArgument
from protocol.http.codec.infer import READER, DecodedRequest, InferBody, RequestedInput, json_too_large, request_of
from protocol.http.codec.json_values import count_values
from protocol.http.codec.long_arrays import LongArray, find_long_arrays
from protocol.http.codec.long_json import (
    FOLLOWING,
    Rest,
    WholeOnly,
    has_words,
    read_arrays,
    read_rest,
    short_rest,
)
from protocol.http.codec.packed_data import PackedData
from protocol.http.errors import BodyTooLarge
from protocol.messages import Buffer
from protocol.sync.sliced import Sliced

DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[')
_FIRST_PART = 1 << 16
# Beside long arrays: as many as a thousand inputs with as many short elements each have.
MOST_VALUES = 1 << 20


def decode_long_request(
    body: Buffer, header_length: int | None, *, model_name: str, model_version: int, max_input_size: int
) -> Sliced[DecodedRequest | None]:
    """As `decode_infer_request`. None for a body that must be read by that: little of it are arrays, or its JSON is of
    an unusual kind."""
    view = memoryview(body)
    json_size = len(view) if header_length is None else header_length
    if json_size > max_input_size:
        raise json_too_large(json_size, max_input_size)
    text = view[:json_size]
    arrays = yield from find_long_arrays(text, DATA)
    if not arrays:
        yield from _refuse_early(text)
    rest = short_rest(text, arrays) if arrays else None
    if rest is None:
        yield from _refuse_many_values(text, arrays)
        return None
    try:
        message = yield from _read(text, arrays, rest)
    except WholeOnly:
        return None
    return request_of(
        message, view, header_length, model_name=model_name, model_version=model_version, max_input_size=max_input_size
    )


def _refuse_many_values(text: memoryview, arrays: Sequence[LongArray]) -> Sliced[None]:
    """Raises BodyTooLarge where to make all that is beside long arrays in one go would take long."""
    starts, ends = [0, *(array.end for array in arrays)], [*(array.start for array in arrays), len(text)]
    found = 0
    for start, end in zip(starts, ends, strict=True):
        found += yield from count_values(text[start:end], MOST_VALUES - found)
        if found > MOST_VALUES:
            raise BodyTooLarge(
                f"the request JSON has more than {MOST_VALUES} values beside its long 'data' arrays, the maximum",
                "infer_json_values",
            )


def _refuse_early(text: memoryview) -> Sliced[None]:
    """Raises InvalidArgument where a text without long arrays is wrong in its first part, whatever follows."""
    if (yield from has_words(text)):
        return
    part = text[:_FIRST_PART]
    positions: list[int] = []

    def place(position: int) -> int:
        positions.append(position)
        return position

    try:
        READER.read(part, place)
    except InvalidArgument:
        if not positions or positions[0] < len(part) - FOLLOWING:
            raise


def _read(text: memoryview, arrays: Sequence[LongArray], rest: Rest) -> Sliced[InferBody]:
    """The message, with `PackedData` in place of long arrays. Raises InvalidArgument, WholeOnly."""
    message, refused = read_rest(rest, READER)
    items: dict[int, RequestedInput] = {}
    if message is not None:
        items = {number: item for item in message.inputs if (number := rest.number_of(item.data)) is not None}
        if len(items) < len(arrays) and message.parameters and rest.mark in repr(message.parameters):
            raise WholeOnly
    found = [_room(items.get(number), array) for number, array in enumerate(arrays)]
    yield from read_arrays(text, arrays, rest, found, READER, refused)
    for number, item in items.items():
        item.data = found[number]
    assert message is not None
    return message


def _room(item: RequestedInput | None, array: LongArray) -> PackedData:
    size = array.end - array.start
    if item is None:
        return PackedData("", None, 0, size)
    count = math.prod(item.shape) if all(dimension >= 0 for dimension in item.shape) else 0
    return PackedData(item.name, BY_PROTOCOL_NAME.get(item.datatype), count, size)
