"""gRPC message framing: the five-byte prefix (compressed flag, length) and the message. No I/O.

Source: "gRPC over HTTP2", section Length-Prefixed-Message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from protocol.errors import InvalidArgument, PayloadTooLarge, ServerError
from protocol.limits.body_rooms import BodyRooms
from protocol.messages import Buffer

PREFIX_LENGTH = 5
_unpack_prefix = struct.Struct(">BI").unpack_from

# A serialized message, whole or in parts.
Message: TypeAlias = bytes | Sequence[Buffer]

# Chunks below so many bytes are gathered: one object for each byte would cost forty times the memory.
_SMALL = 1024
# What follows a message of more bytes is copied, so that it does not keep the message alive.
_LARGE = 65536
_COPIED_SIZE = 4096


class Frame(NamedTuple):
    """One message as it came: `payload` is a view of the received bytes and still compressed if the flag says so."""

    is_compressed: bool
    payload: memoryview


class MessageDeframer:
    """Bytes in, frames out. A large message has memory of its own from its prefix on, where its bytes can be received
    (`room`), if `rooms` has some; the chunks of others are held as they came, and joined once per message.

    `max_message_size` is in bytes, without the prefix. A message over it is refused as soon as its prefix is there.
    """

    __slots__ = (
        *("_chunks", "_error", "_filled", "_flag", "_large", "_length", "_max_message_size", "_rooms"),
        "buffered",
    )

    def __init__(self, max_message_size: int, rooms: BodyRooms | None = None) -> None:
        self._max_message_size = max_message_size
        self._rooms = rooms or BodyRooms()
        self._chunks: list[Buffer] = []
        self._length = -1  # of the message that is under way, -1 before its prefix is complete
        self._large: memoryview | None = None  # its memory, if it is large
        self._filled = 0  # of that
        self._flag = 0
        self._error: ServerError | None = None
        self.buffered = 0  # bytes, prefixes included

    @property
    def is_ready(self) -> bool:
        """Whether `next_frame` has something to say."""
        return self._error is not None or 0 <= self._length <= self.buffered - PREFIX_LENGTH

    @property
    def has_more(self) -> bool:
        """Whether there is more than one message can be: an error, or bytes behind it."""
        return self._error is not None or 0 <= self._length < self.buffered - PREFIX_LENGTH

    def whole(self) -> memoryview | None:
        """The message, if exactly one is there, and not compressed. It stays."""
        if self._error is not None or self._flag or self._length < 0 or self._length != self.buffered - PREFIX_LENGTH:
            return None
        return memoryview(self._joined())[PREFIX_LENGTH:] if self._large is None else self._large.toreadonly()

    def room(self, size: int) -> memoryview | None:
        """Where the next bytes belong, at most `size`, if that is known. What is then fed of it is not copied."""
        large, filled = self._large, self._filled
        return None if large is None or filled == len(large) else large[filled : filled + size]

    def feed(self, data: Buffer) -> None:
        size = len(data)
        self.buffered += size
        large = self._large
        if large is not None:
            if isinstance(data, memoryview) and data.obj is large.obj:
                self._filled += size
                return
            start = self._filled
            self._filled = end = min(start + size, len(large))
            large[start:end] = data[: end - start]
            if end - start == size:
                return
            data = data[end - start :]
        self._keep(data)
        if self._length < 0:
            self._begin()

    def next_frame(self) -> Frame | None:
        """The next message, or None where more bytes are needed.

        Raises:
            InvalidArgument: the flag byte is neither 0 nor 1.
            PayloadTooLarge: the message is larger than the limit.
        """
        if self._error is not None:
            raise self._error
        if not self.is_ready:
            return None
        end = PREFIX_LENGTH + self._length
        if self._large is not None:
            payload = self._large.toreadonly()
            self._large = None
        else:
            data = memoryview(self._joined())
            payload = data[PREFIX_LENGTH:end]
            rest = data[end:]
            if rest and end > _LARGE:
                rest = memoryview(bytes(rest))
            self._chunks = [rest] if rest else []
        self.buffered -= end
        self._length = -1
        found = Frame(self._flag == 1, payload)
        self._begin()
        return found

    def _keep(self, data: Buffer) -> None:
        chunks = self._chunks
        if len(data) >= _SMALL or not chunks:
            if data:
                chunks.append(data)
        elif isinstance(chunks[-1], bytearray):  # never one that a payload is a view of: that one has left the list
            chunks[-1] += data
        else:
            chunks.append(bytearray(data))

    def _begin(self) -> None:
        """Read the prefix of the next message, if it is there."""
        if self.buffered < PREFIX_LENGTH or self._error is not None:
            return
        prefix = self._chunks[0] if len(self._chunks[0]) >= PREFIX_LENGTH else self._joined()
        self._flag = prefix[0]
        length = int.from_bytes(prefix[1:PREFIX_LENGTH], "big")
        if self._flag > 1:
            self._error = InvalidArgument(f"a message's compressed flag must be 0 or 1, got {prefix[0]}")
        elif length > self._max_message_size:
            self._error = message_too_large(length, self._max_message_size)
        else:
            self._length = length
            if length > max(_LARGE, self.buffered - PREFIX_LENGTH):
                self._make_room(length)

    def _make_room(self, length: int) -> None:
        large = self._rooms.make(length)
        if large is None:
            return
        start = memoryview(self._joined())[PREFIX_LENGTH:]
        self._chunks = []
        self._large = large
        self._filled = len(start)
        large[: self._filled] = start

    def _joined(self) -> Buffer:
        if len(self._chunks) > 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0]


def whole_message(data: Buffer, max_message_size: int) -> bytes | memoryview | None:
    """The message in the bytes, if they are exactly one of no more than that size, and not compressed: a copy of a
    small one, which costs less than a view of it."""
    size = len(data) - PREFIX_LENGTH
    if size < 0 or size > max_message_size or _unpack_prefix(data) != (0, size):
        return None
    if size <= _COPIED_SIZE and type(data) is bytes:
        return data[PREFIX_LENGTH:]
    return memoryview(data)[PREFIX_LENGTH:]


def message_too_large(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the message of {size} bytes is larger than the server's limit of {limit} bytes")


def frame(message: Message, *, is_compressed: bool = False) -> list[Buffer]:
    """The message behind its prefix: joined, where that costs less than to send its parts from where they are."""
    parts = [message] if isinstance(message, bytes) else message
    size = sum(map(len, parts))
    prefix = (b"\1" if is_compressed else b"\0") + size.to_bytes(4, "big")
    return [b"".join((prefix, *parts))] if size < _LARGE else [prefix, *parts]
