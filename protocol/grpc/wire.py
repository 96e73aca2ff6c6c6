"""Two shortcuts through protobuf's wire format, so that tensors are not copied into and out of message objects.

A serialized message is its fields one after the other, in any order, so a bulky `bytes` field can be cut out before
parsing, and appended after serializing. Source: protobuf's encoding guide.
"""

from __future__ import annotations

from protocol.messages import Buffer

# Requests have tens of fields. One made of millions is for the parser, which is not written in Python.
_MAX_FIELDS = 4096


def encode_varint(value: int) -> bytes:
    """`value` must not be negative."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field_parts(number: int, *values: Buffer) -> list[Buffer]:
    """What to append to a serialized message so that its length-delimited field holds the joined values."""
    size = sum(value.nbytes if isinstance(value, memoryview) else len(value) for value in values)
    return [encode_varint(number << 3 | 2) + encode_varint(size), *values]


def cut_field(data: memoryview, number: int) -> tuple[bytes, list[memoryview]] | None:
    """Cut all top-level values of a length-delimited field out of a serialized message.

    Returns:
        The message without the field, and the values as views. None where the message is anything but plain (broken,
        too many fields, groups): a parser then has to say what it is.
    """
    rest: list[memoryview] = []
    values: list[memoryview] = []
    kept = position = 0
    end = len(data)
    for _ in range(_MAX_FIELDS):
        if position == end:
            rest.append(data[kept:])
            return b"".join(rest), values
        start = position
        key, position = _varint(data, position)
        match key & 7:
            case 2:  # length-delimited
                length, position = _varint(data, position)
                value = position
                position += length
                if key >> 3 == number and 0 <= position <= end:
                    values.append(data[value:position])
                    rest.append(data[kept:start])
                    kept = position
            case 0:  # varint
                _, position = _varint(data, position)
            case 1:  # 64 bits
                position += 8
            case 5:  # 32 bits
                position += 4
            case _:  # groups, which proto3 has not
                return None
        if key < 8 or not start < position <= end:
            return None
    return None


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """The value and where it ends; a position far past the end where there is none."""
    value = shift = 0
    for offset in range(position, min(position + 10, len(data))):
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset + 1
        shift += 7
    return 0, 1 << 64
