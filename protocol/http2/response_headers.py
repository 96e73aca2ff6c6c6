"""HPACK encoding of response headers, with a cache of header blocks.

Only headers with few distinct values enter HPACK's dynamic table, so it stops changing after the first responses, and
encoded blocks can be sent again as they are. Source: RFC 7541.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from hpack.struct import NeverIndexedHeaderTuple

from protocol.http2.h2_connection import BoundedEncoder

ResponseBlock: TypeAlias = tuple[tuple[bytes, bytes], ...]

# Names whose values are few.
_INDEXED = frozenset((b":status", b"content-type", b"grpc-accept-encoding", b"grpc-encoding", b"grpc-status"))
# A literal without indexing, with a name of its own (RFC 7541, 6.2.2); it leaves the table as it is.
_REQUEST_ID = b"\0\x0cx-request-id"
# Blocks that are kept although their values may be any.
_MAX_KEPT = 32
# From this on a length takes a second byte (RFC 7541, 5.1).
_LONG = 127
# The header `x-request-id` up to its value, by the length of that, which is at most 128 bytes.
ID_STARTS = tuple(
    [_REQUEST_ID + (bytes((length,)) if length < _LONG else bytes((_LONG, length - _LONG))) for length in range(129)]
)


def literal_request_id(request_id: bytes) -> bytes:
    """The header `x-request-id`, to be put behind an encoded block; the value has at most 128 bytes."""
    return ID_STARTS[len(request_id)] + request_id


class ResponseHeaders:
    """A client chooses the size of the table, within what `BoundedEncoder` allows. `kept` is the cache: blocks whose
    names are all `indexed`, or with `keeps_any` the last few of all."""

    __slots__ = ("_indexed", "_keeps_any", "encoder", "kept")

    def __init__(self, indexed: Collection[bytes] = _INDEXED, *, keeps_any: bool = False) -> None:
        self._indexed = indexed
        self._keeps_any = keeps_any
        self.encoder = BoundedEncoder()
        self.kept: dict[ResponseBlock, bytes] = {}

    def set_table_size(self, size: int) -> None:
        self.encoder.header_table_size = size
        self.kept.clear()

    def encode(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        key = tuple(headers)
        block = self.kept.get(key)
        return self._encoded(key) if block is None else block

    def _encoded(self, headers: ResponseBlock) -> bytes:
        encoder = self.encoder
        indexed = self._indexed
        is_plain = all(name in indexed for name, _ in headers)
        before = encoder.header_table_size, list(encoder.header_table.dynamic_entries)
        tells_size = bool(encoder.table_size_changes)
        block: bytes = encoder.encode(
            [header if header[0] in indexed else NeverIndexedHeaderTuple(*header) for header in headers]
        )
        if before != (encoder.header_table_size, list(encoder.header_table.dynamic_entries)):
            self.kept.clear()  # what was an index before is another one now
        elif (is_plain or self._keeps_any) and not tells_size:
            if self._keeps_any and len(self.kept) >= _MAX_KEPT:
                self.kept.clear()
            self.kept[headers] = block
        return block
