"""HTTP/2 frame parser and serialiser. No state but what of a frame is still to come.

Source: RFC 9113, sections 4 and 6.
"""

from __future__ import annotations

import struct
import sys
from typing import TypeAlias

from h2.exceptions import FrameDataMissingError, FrameTooLargeError, ProtocolError

from protocol.messages import Buffer

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

# Flags; a bit means one thing in one kind of frame and another in the next.
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
IS_PADDED = 0x8
HAS_PRIORITY = 0x20

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_SIZE = 9
# Of a peer that has said nothing else; nothing that we send in frames of our own choice has to be larger.
DEFAULT_MAX_FRAME_SIZE = 16384

# Of DATA, either way: fewer and larger frames cost less. Those of a large message are given in pieces as they come.
MAX_FRAME_SIZE = 1 << 20

# A frame that is held until it is whole; DATA may be larger.
MAX_WHOLE_FRAME = 131072
# A DATA frame of more is given in pieces as they come. What is smaller is worth waiting for.
_SPLIT_ABOVE = 8192
# To decode so many bytes of a header block takes as long as to handle a frame, or longer.
_BLOCK_AS_A_FRAME = 512

_HEADER = struct.Struct(">BHBBI")
# Of the size's upper 8 bits and lower 16, kind, flags, stream.
pack_header = _HEADER.pack
unpack_header = _HEADER.unpack_from

Frame: TypeAlias = tuple[int, int, int, Buffer]


def frame_header(size: int, kind: int, flags: int, stream_id: int) -> bytes:
    return pack_header(size >> 16, size & 0xFFFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frame_header(len(payload), kind, flags, stream_id) + payload


def without_padding(payload: Buffer) -> Buffer:
    """Raises ProtocolError where there is more padding than payload."""
    if not payload:
        raise FrameDataMissingError("a padded frame without a length of its padding")
    end = len(payload) - payload[0]
    if end < 1:
        raise ProtocolError("Received frame with invalid padding.")
    return payload[1:end]


def check_dependency(stream_id: int, priority: Buffer) -> None:
    if len(priority) < 5:
        raise FrameDataMissingError(f"a priority of {len(priority)} bytes, expected 5")
    if int.from_bytes(priority[:4], "big") & 0x7FFFFFFF == stream_id:
        raise ProtocolError(f"Stream {stream_id} may not depend on itself")


def read_number(payload: Buffer) -> int:
    if len(payload) != 4:
        raise FrameDataMissingError(f"a frame of {len(payload)} bytes, expected 4")
    return int.from_bytes(payload, "big")


class FrameReader:
    """Cuts what a client sends into frames, its preface first. It holds no more than one frame that is not complete.

    A large DATA frame that comes in pieces is given in pieces. Where it is padded, its padding comes behind it as a
    DATA frame of its own, which has the flags.

    The payload of a frame is a copy; a view where a copy would not keep much less alive.

    Attributes:
        has_more: bytes have come that `read` has not looked at.
        under_way: of a DATA frame that is given in pieces its flags, its stream, and how many bytes are to come.
    """

    __slots__ = (
        *("_max_frame_size", "_needed", "_padding", "_position", "_preface", "_rest", "_rest_size", "_unchecked_size"),
        *("_unread", "has_more", "under_way"),
    )

    def __init__(self, max_frame_size: int) -> None:
        self._max_frame_size = max_frame_size
        # What is no longer, as most frames are, needs no further check.
        self._unchecked_size = min(max_frame_size, _BLOCK_AS_A_FRAME)
        self._preface = PREFACE
        self._rest: list[Buffer] = []
        self._rest_size = 0
        self._needed = 0  # with fewer bytes nothing more can be said
        self._padding = b""  # the start of the frame that stands for the padding behind the pieces
        self.under_way: tuple[int, int, int] | None = None
        self.has_more = False
        self._unread: Buffer = b""
        self._position = 0

    def read(self, data: Buffer | None, most: int = sys.maxsize) -> tuple[list[Frame], ProtocolError | None]:
        """Frames, as far as they are there, and what is wrong with the bytes behind them: the client does not greet
        with HTTP/2's preface, or it announces a frame that is larger than it was told, or than is held of its kind
        (FrameTooLargeError).

        No more than so many, of which a long header block is several: where it `has_more` then, None in place of bytes
        goes on."""
        found: list[Frame] = []
        if data is None:
            data, position = self._unread, self._position
            self._unread, self.has_more = b"", False
        else:
            position = 0
            if self._preface:
                size = min(len(self._preface), len(data))
                if self._preface[:size] != data[:size]:
                    return found, ProtocolError("Invalid HTTP/2 preamble.")
                self._preface = self._preface[size:]
                data = data[size:]
            if self._rest:
                self._rest.append(data)
                self._rest_size += len(data)
                if self._rest_size < self._needed:
                    return found, None
                data = b"".join(self._rest)
                self._rest.clear()
            if self.under_way is not None and data:
                flags, stream_id, left = self.under_way
                position = min(left, len(data))
                found.append(self._data_piece(flags, stream_id, left, memoryview(data)[:position]))
                most -= 1
                if self._padding and self.under_way is None:
                    data, position = self._before_padding(data[position:]), 0
        end = len(data)
        last = end - HEADER_SIZE  # where a frame may begin
        is_large = end > _SPLIT_ABOVE
        while position <= last:
            if most <= 0:
                self._unread, self._position, self.has_more = data, position, True
                return found, None
            high, low, kind, flags, stream_id = unpack_header(data, position)
            size = high << 16 | low
            most -= 1
            if size > self._unchecked_size:
                if size > self._max_frame_size:
                    error = f"Received overlong frame: length {size}, max {self._max_frame_size}"
                    return found, FrameTooLargeError(error)
                if kind != DATA:
                    if size > MAX_WHOLE_FRAME:
                        error = f"Received a frame of kind {kind} of {size} bytes, max {MAX_WHOLE_FRAME}"
                        return found, FrameTooLargeError(error)
                    if kind in (HEADERS, CONTINUATION):
                        most -= size // _BLOCK_AS_A_FRAME
            stream_id &= 0x7FFFFFFF
            start = position + HEADER_SIZE
            position = start + size
            if position <= end:
                if is_large and 4 * size >= end:  # a view keeps alive all that was read
                    found.append((kind, flags, stream_id, memoryview(data)[start:position]))
                else:
                    found.append((kind, flags, stream_id, data[start:position]))
            else:
                self._begin(found, data, start, size, kind, flags, stream_id)
                return found, None
        if position < end:
            self._keep(data[position:], HEADER_SIZE)
        return found, None

    def _begin(
        self, found: list[Frame], data: Buffer, start: int, size: int, kind: int, flags: int, stream_id: int
    ) -> None:
        """A frame whose payload begins here, and ends in what is still to come."""
        if kind != DATA or size <= _SPLIT_ABOVE:
            self._keep(data[start - HEADER_SIZE :], HEADER_SIZE + size)
            return
        padding = 0
        if flags & IS_PADDED:
            if start == len(data):
                self._keep(data[start - HEADER_SIZE :], HEADER_SIZE + 1)
                return
            padding = data[start]
            self._padding = frame_header(1 + padding, DATA, flags, stream_id) + bytes((padding,))
            flags, size, start = 0, size - 1 - padding, start + 1
        if start < len(data):
            found.append(self._data_piece(flags, stream_id, size, memoryview(data)[start : start + size]))
        else:
            self.under_way = flags, stream_id, size
        if self._padding and self.under_way is None:  # all but the padding is there
            self._keep(self._before_padding(data[start + size :]), HEADER_SIZE + 1 + padding)

    def _data_piece(self, flags: int, stream_id: int, left: int, payload: memoryview) -> Frame:
        left -= len(payload)
        self.under_way = (flags, stream_id, left) if left else None
        return DATA, 0 if left else flags, stream_id, payload

    def _before_padding(self, rest: Buffer) -> bytes:
        start, self._padding = self._padding, b""
        return b"".join((start, rest))

    def _keep(self, rest: Buffer, needed: int) -> None:
        self._rest.append(rest)
        self._rest_size = len(rest)
        self._needed = needed
