"""HPACK header blocks that need no decoding: what is known of them from their bytes alone. Pure.

Source: RFC 7541, section 6.
"""

from __future__ import annotations

_REQUEST_ID = b"\0\x0cx-request-id"


def without_request_id(block: bytes) -> bytes:
    """A header block without the `x-request-id` at its end, as this server writes it: a literal without indexing, which
    is another one each time and leaves the table as it is."""
    at = block.find(_REQUEST_ID)
    value = at + len(_REQUEST_ID) + 1
    if at < 0 or value > len(block) or value + block[value - 1] != len(block):
        return block
    return block[:at]


def leaves_table(block: bytes) -> bool:
    """Whether a header block leaves the table of names as it is: it holds references and literals without indexing
    only. Anything that is not understood is said to change it."""
    position, end = 0, len(block)
    while position < end:
        first = block[position]
        position += 1
        if first & 0x80:
            if first == 0xFF:
                return False
            continue
        if first & 0xE0 or first & 0x0F == 0x0F:  # with indexing, a new size, or a number of several bytes
            return False
        for _ in range(1 if first & 0x0F else 2):  # the name, if it is no reference, and the value
            if position >= end or (length := block[position] & 0x7F) == 0x7F:
                return False
            position += 1 + length
    return position == end
