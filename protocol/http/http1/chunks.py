"""Decoder of chunked transfer coding (RFC 9112, 7.1). Pure: bytes in, content out, and what lies behind the end is left
as it is.

llhttp reads chunks, too, but does not say where the last one ends, and lets their extensions be endless.
"""

from __future__ import annotations

import re

from protocol.errors import InvalidArgument, ServerError
from protocol.http.head import malformed

# Triton's bound on chunks, for bodies cut so small that framing costs more than content.
MAX_CHUNKS = 65536

# Sixteen digits are the largest size that fits 64 bits.
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00-\x08\x0a-\x1f\x7f]*")


class LineTooLong(Exception):
    """A framing line, or all trailers together, exceed the limit."""


class ChunkDecoder:
    """Feed it what comes; `parts` has the content so far. `max_line` bounds framing that never ends."""

    __slots__ = ("_count", "_left", "_max_line", "_rest", "_trailers", "is_complete", "parts")

    def __init__(self, max_line: int) -> None:
        self.parts: list[bytes] = []
        self.is_complete = False
        self._max_line = max_line
        self._rest = b""
        self._count = 0
        self._left = -1  # of the present chunk and the line end behind it; -1 before a size
        self._trailers = -1  # bytes of trailers; -1 before them

    def feed(self, data: bytes) -> int:
        """Take what has come, and return how many bytes of content it had. Once `is_complete`, `rest` is what lies
        behind the body.

        Raises:
            InvalidArgument: these are no chunks, or too many.
            LineTooLong: with nothing that could be answered better than `431`.
        """
        if self._rest:
            data = self._rest + data
        position, found = 0, 0
        while not self.is_complete:
            if self._left >= 0:
                if self._left > 2:
                    part = data[position : position + self._left - 2]
                    if part:
                        self.parts.append(part)
                    position += len(part)
                    found += len(part)
                    self._left -= len(part)
                    if self._left > 2:
                        break
                if len(data) - position < 2:
                    break
                if data[position : position + 2] != b"\r\n":
                    raise malformed("a chunk is longer than its size says")
                position += 2
                self._left = -1
            end = data.find(b"\n", position)
            if end < 0:
                if len(data) - position > self._max_line:
                    raise LineTooLong
                break
            if end - position > self._max_line:
                raise LineTooLong
            line = data[position : end + 1]
            position = end + 1
            if not line.endswith(b"\r\n"):
                raise malformed("a line of a chunked body does not end with CR LF")
            self._take_line(line[:-2])
        self._rest = data[position:]
        return found

    @property
    def rest(self) -> bytes:
        return self._rest

    def _take_line(self, line: bytes) -> None:
        if self._trailers < 0:
            match = _SIZE_LINE.fullmatch(line)
            if match is None:
                raise malformed("the size of a chunk is no hexadecimal number")
            size = int(match[1], 16)
            if size == 0:
                self._trailers = 0
                return
            self._count += 1
            if self._count > MAX_CHUNKS:
                raise _too_many_chunks()
            self._left = size + 2
        elif not line:
            self.is_complete = True
        else:
            self._trailers += len(line)
            if self._trailers > self._max_line:
                raise LineTooLong
            if _TRAILER.fullmatch(line) is None:
                raise malformed("a trailer is no header line")


def _too_many_chunks() -> ServerError:
    return InvalidArgument(
        f"Chunked request body exceeds maximum of {MAX_CHUNKS} non-empty chunks. Send fewer or larger HTTP chunks."
    )
