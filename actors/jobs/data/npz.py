"""Reader of NPZ files: arrays of the same length, whose places along the first axis are rows. Blocks.

The arrays are read side by side, a piece at a time, so that a file may be larger than the memory.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from protocol.jobs.rows import FileRow, MalformedFile

# Of all arrays together, read at a time.
_PIECE_BYTES = 4 << 20
_PIECE_ROWS = 4096
_MOST_ARRAYS = 1000
# What the libraries raise of a file that is none.
_FAULTS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError)


@dataclass(slots=True)
class _Column:
    """One array of the file; `data` is at its first row that was not read."""

    data: IO[bytes]
    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, count: int) -> NDArray[Any]:
        size = count * self.row_bytes
        data = self.data.read(size)
        if len(data) < size:
            raise MalformedFile("an array is cut off")
        if not size:
            return np.zeros((count, *self.shape), self.dtype)
        return np.frombuffer(data, self.dtype).reshape(count, *self.shape)


def read_npz(file: BinaryIO, offset: int, max_row_bytes: int) -> Iterator[FileRow]:
    """The rows from a row on.

    Raises:
        MalformedFile: the file is not what it should be.
    """
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(file))
            if len(archive.namelist()) > _MOST_ARRAYS:
                raise MalformedFile(f"expected at most {_MOST_ARRAYS} arrays, got {len(archive.namelist())}")
            columns = {
                name.removesuffix(".npy"): _column(stack.enter_context(archive.open(name)), name)
                for name in archive.namelist()
            }
            rows = _rows(columns, max_row_bytes)
            for column in columns.values():
                column.data.seek(offset * column.row_bytes, 1)
            size = max(sum(column.row_bytes for column in columns.values()), 1)
            while offset < rows:
                count = min(max(_PIECE_BYTES // size, 1), _PIECE_ROWS, rows - offset)
                pieces = {name: column.read(count) for name, column in columns.items()}
                for place in range(count):
                    yield FileRow(offset + place + 1, values={name: piece[place] for name, piece in pieces.items()})
                offset += count
        except _FAULTS as error:
            raise MalformedFile(f"no NPZ file: {error}") from None


def _column(data: IO[bytes], name: str) -> _Column:
    try:
        version = npy.read_magic(data)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(data)
    except ValueError as error:
        raise MalformedFile(f"array '{name}': {error}") from None
    if dtype.hasobject or dtype.names is not None:
        raise MalformedFile(f"array '{name}': expected elements of a plain type, got {dtype}")
    if not shape:
        raise MalformedFile(f"array '{name}': expected rows along its first axis, got a single number")
    if is_fortran and len(shape) > 1:
        raise MalformedFile(f"array '{name}': expected an array in C order, got one in Fortran order")
    return _Column(data, shape[0], shape[1:], dtype)


def _rows(columns: dict[str, _Column], max_row_bytes: int) -> int:
    lengths = {name: column.rows for name, column in columns.items()}
    if len({*lengths.values()}) != 1:
        raise MalformedFile(f"expected arrays with the same number of rows, got {lengths or 'none'}")
    size = sum(column.row_bytes for column in columns.values())
    if size > max_row_bytes:
        raise MalformedFile(f"a row has {size} bytes, expected at most {max_row_bytes}")
    return next(iter(lengths.values()))
