"""Protobuf wire format: cutting bulky fields out of, and appending them to, serialised messages without copies.

A serialized message is its fields one after the other, in any order, so a bulky `bytes` field can be cut out before
parsing, and appended after serializing. Source: protobuf's encoding guide.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from protocol.messages import Buffer

# Requests have tens of fields. One made of millions is for the parser, which is not written in Python.
MAX_FIELDS = 4096


@lru_cache(maxsize=1024)
def encode_varint(value: int) -> bytes:
    """`value` must not be negative."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@lru_cache(maxsize=1024)
def field_start(number: int, length: int) -> bytes:
    """The bytes before the value of a length-delimited field, which with its value may be appended to a serialized
    message."""
    return encode_varint(number << 3 | 2) + encode_varint(length)


class Field(NamedTuple):
    """Where a field is: from its key at `start`, with its value from `value` to `end`."""

    number: int
    is_delimited: bool
    start: int
    value: int
    end: int


def top_level_fields(data: Buffer) -> list[Field] | None:
    """The fields of a serialized message, in their order; None where it is anything but plain (broken, too many fields,
    groups): a parser then has to say what it is."""
    fields: list[Field] = []
    position = 0
    end = len(data)
    while position < end:
        start = position
        key, position = read_varint(data, position)
        value = position
        match key & 7:
            case 2:  # length-delimited
                length, value = read_varint(data, position)
                position = value + length
            case 0:  # varint
                _, position = read_varint(data, position)
            case 1:  # 64 bits
                position += 8
            case 5:  # 32 bits
                position += 4
            case _:  # groups, which proto3 has not
                return None
        if key < 8 or not start < position <= end or len(fields) == MAX_FIELDS:
            return None
        fields.append(Field(key >> 3, key & 7 == 2, start, value, position))
    return fields


def cut_field(data: memoryview, number: int) -> tuple[bytes, list[memoryview]] | None:
    """Cut all top-level values of a length-delimited field out of a serialized message.

    Returns:
        The message without the field, and the values as views. None where the message is not plain.
    """
    fields = top_level_fields(data)
    if fields is None:
        return None
    found = [field for field in fields if field.number == number and field.is_delimited]
    kept = 0
    rest: list[memoryview] = []
    for field in found:
        rest.append(data[kept : field.start])
        kept = field.end
    rest.append(data[kept:])
    return b"".join(rest), [data[field.value : field.end] for field in found]


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """The value and where it ends; a position far past the end where there is none."""
    value = shift = 0
    for offset in range(position, min(position + 10, len(data))):
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset + 1
        shift += 7
    return 0, 1 << 64
