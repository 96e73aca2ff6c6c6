"""Reader of JSON lines: each line that is not blank is a row. Blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from protocol.jobs.rows import FileRow

_PIECE = 1 << 20


def read_json_lines(file: BinaryIO, offset: int, max_row_bytes: int) -> Iterator[FileRow]:
    """The rows from an offset on, in bytes. A line that is longer is a row that cannot be read."""
    file.seek(offset)
    while line := file.readline(max_row_bytes + 1):
        offset += len(line)
        if len(line) > max_row_bytes and not line.endswith(b"\n"):
            offset += _skip_line(file)
            yield FileRow(offset, error=f"the line has more than {max_row_bytes} bytes")
        elif text := line.strip():
            yield FileRow(offset, line=text)


def _skip_line(file: BinaryIO) -> int:
    size = 0
    while piece := file.readline(_PIECE):
        size += len(piece)
        if piece.endswith(b"\n"):
            break
    return size
