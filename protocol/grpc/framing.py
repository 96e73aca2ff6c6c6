"""gRPC's message framing: one flag byte, four bytes of length, the message. No I/O.

Source: "gRPC over HTTP2", section Length-Prefixed-Message.
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import InvalidArgument, PayloadTooLarge
from protocol.messages import Buffer

PREFIX_LENGTH = 5

# Chunks below so many bytes are gathered: one object for each byte would cost forty times the memory.
_SMALL = 1024
# What follows a message of more bytes is copied, so that it does not keep the message alive.
_LARGE = 65536


class Frame(NamedTuple):
    """One message as it came: `payload` is a view of the received bytes and still compressed if the flag says so."""

    is_compressed: bool
    payload: memoryview


class MessageDeframer:
    """Bytes in, frames out. Holds the chunks as they came, and joins them once per message.

    `max_message_size` is in bytes, without the prefix. A message over it is refused as soon as its prefix is there.
    """

    __slots__ = ("_chunks", "_length", "_max_message_size", "buffered")

    def __init__(self, max_message_size: int) -> None:
        self._max_message_size = max_message_size
        self._chunks: list[Buffer] = []
        self._length = -1  # of the message that is under way, -1 before its prefix is complete
        self.buffered = 0  # bytes, prefixes included

    def feed(self, data: Buffer) -> None:
        chunks = self._chunks
        if len(data) >= _SMALL or not chunks:
            if data:
                chunks.append(data)
        elif isinstance(chunks[-1], bytearray):  # never one that a payload is a view of: that one has left the list
            chunks[-1] += data
        else:
            chunks.append(bytearray(data))
        self.buffered += len(data)

    def next_frame(self) -> Frame | None:
        """The next message, or None where more bytes are needed.

        Raises:
            InvalidArgument: the flag byte is neither 0 nor 1.
            PayloadTooLarge: the message is larger than the limit.
        """
        if self._length < 0:
            if self.buffered < PREFIX_LENGTH:
                return None
            self._length = self._read_prefix()
        end = PREFIX_LENGTH + self._length
        if self.buffered < end:
            return None
        data = memoryview(self._joined())
        rest = data[end:]
        if rest and end > _LARGE:
            rest = memoryview(bytes(rest))
        self._chunks = [rest] if rest else []
        self.buffered = len(rest)
        self._length = -1
        return Frame(data[0] == 1, data[PREFIX_LENGTH:end])

    def _read_prefix(self) -> int:
        prefix = self._chunks[0] if len(self._chunks[0]) >= PREFIX_LENGTH else self._joined()
        if prefix[0] > 1:
            raise InvalidArgument(f"a message's compressed flag must be 0 or 1, got {prefix[0]}")
        length = int.from_bytes(prefix[1:PREFIX_LENGTH], "big")
        if length > self._max_message_size:
            raise message_too_large(length, self._max_message_size)
        return length

    def _joined(self) -> Buffer:
        if len(self._chunks) > 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0]


def message_too_large(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the message of {size} bytes is larger than the server's limit of {limit} bytes")


def frame(message: bytes, *, is_compressed: bool = False) -> tuple[bytes, ...]:
    """The message behind its prefix: joined, where that costs less than to send them apart."""
    prefix = (b"\1" if is_compressed else b"\0") + len(message).to_bytes(4, "big")
    return (prefix + message,) if len(message) < _LARGE else (prefix, message)
