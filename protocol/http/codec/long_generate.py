"""Codec of long JSON of the generate extension: as `codec.generate` reads and writes it, in slices.

Pure. Long arrays that are members of the object are parsed in pieces (`long_json`), and long outputs are written so.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

import msgspec

from protocol.core import ModelMetadata
from protocol.datatypes import BY_PROTOCOL_NAME
from protocol.http.codec.generate import READER, encode_generate_response, request_of, value_of_tensor
from protocol.http.codec.long_answer import LONG_ABOVE, Pieces, written_in_pieces
from protocol.http.codec.long_arrays import find_long_arrays
from protocol.http.codec.long_json import WholeOnly, read_arrays, read_rest, short_rest
from protocol.http.codec.packed_data import PackedData
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, Tensor
from protocol.sync.sliced import Sliced

# The end of any key, which has no quote within, and the bracket of its array.
_KEY = re.compile(rb'"[^"\\]{0,128}"[ \t\r\n]*:[ \t\r\n]*\[')


def decode_long_generate(
    body: Buffer, metadata: ModelMetadata, *, model_version: int, max_input_size: int
) -> Sliced[InferenceRequest | None]:
    """As `decode_generate_request`. None for a body that must be read by that: little of it are arrays, or
    its JSON is of an unusual kind."""
    text = memoryview(body)
    arrays = yield from find_long_arrays(text, _KEY)
    rest = short_rest(text, arrays) if arrays else None
    if rest is None:
        return None
    members, refused = read_rest(rest, READER)
    inputs = {tensor.name: tensor for tensor in metadata.inputs}
    found = [PackedData("", None, 0, array.end - array.start) for array in arrays]
    for holder, is_told in ((members, ("id", "parameters")), ((members or {}).get("parameters"), ())):
        if not isinstance(holder, dict):
            continue
        for key, value in holder.items():
            number = rest.number_of(value)
            if number is not None and key in inputs:
                size = arrays[number].end - arrays[number].start
                found[number] = PackedData(key, BY_PROTOCOL_NAME[inputs[key].datatype], size // 2 + 1, size)
                holder[key] = found[number]
            elif key in is_told and not (key == "parameters" and isinstance(value, dict)) and rest.mark in repr(value):
                return None  # for what is wrong with it is told with its first elements
    try:
        yield from read_arrays(text, arrays, rest, found, READER, refused)
    except WholeOnly:
        return None
    assert members is not None
    return request_of(members, rest.text, metadata, model_version=model_version, max_input_size=max_input_size)


def is_long(response: InferenceResponse) -> bool:
    """Whether to write it in one go would take too long."""
    size = 0
    for tensor in response.outputs:
        size += tensor.byte_size
    return size > LONG_ABOVE


def encode_long_generate(response: InferenceResponse) -> Sliced[list[bytes]]:
    """As `encode_generate_response`, in several parts."""
    mark = secrets.token_hex(16)
    made: list[Pieces] = []
    values: dict[int, Any] = {}
    for tensor in response.outputs:
        if tensor.byte_size > LONG_ABOVE and tensor.element_count != 1:
            values[id(tensor)] = msgspec.Raw(b'"%b%d"' % (mark.encode(), len(made)))
            made.append((yield from written_in_pieces(tensor)))

    def value_of(tensor: Tensor) -> object:
        return values[id(tensor)] if id(tensor) in values else value_of_tensor(tensor)

    parts: list[bytes] = []
    for number, part in enumerate(
        re.split(b'"%b(\\d+)"' % mark.encode(), encode_generate_response(response, value_of))
    ):
        parts += [b"[", *made[int(part)], b"]"] if number % 2 else [part]
        yield
    return parts
