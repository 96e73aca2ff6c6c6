"""Frames that hyperframe cannot write."""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass
class Raw:
    """A frame of the connection, with any kind and body and no flags."""

    kind: int
    body: bytes

    def serialize(self) -> bytes:
        return struct.pack(">I", len(self.body))[1:] + bytes([self.kind, 0]) + bytes(4) + self.body
