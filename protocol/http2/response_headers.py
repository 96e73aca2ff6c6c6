"""Header blocks of responses, encoded once for all that are the same.

Only headers with few values go into HPACK's table, so it stops changing after the first responses, and from then on a
block that was encoded once may be sent again as it is. Source: RFC 7541.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hpack.struct import NeverIndexedHeaderTuple

from protocol.http2.h2_connection import BoundedEncoder

ResponseBlock: TypeAlias = tuple[tuple[bytes, bytes], ...]

_INDEXED = frozenset((b":status", b"content-type", b"grpc-accept-encoding", b"grpc-encoding", b"grpc-status"))


class ResponseHeaders:
    """A client chooses how large the table may be; it takes no more than `BoundedEncoder` allows. `kept` are the blocks
    that may be sent again."""

    def __init__(self) -> None:
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
        is_plain = all(name in _INDEXED for name, _ in headers)
        before = encoder.header_table_size, list(encoder.header_table.dynamic_entries)
        tells_size = bool(encoder.table_size_changes)
        block: bytes = encoder.encode(
            [header if header[0] in _INDEXED else NeverIndexedHeaderTuple(*header) for header in headers]
        )
        if before != (encoder.header_table_size, list(encoder.header_table.dynamic_entries)):
            self.kept.clear()  # what was an index before is another one now
        elif is_plain and not tells_size:
            self.kept[headers] = block
        return block
