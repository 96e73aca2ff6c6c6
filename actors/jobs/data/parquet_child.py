"""Program that decodes Parquet files for the server, in a process of its own whose memory is bounded. Blocks.

`parquet_reader` starts it and speaks to it over pipes: it asks for the bytes of a file, and gives back small batches
of rows in Arrow's format. A file can decode to far more than it has, and a malformed one can end a decoder: here that
costs this process. It imports nothing of the server's.
"""

from __future__ import annotations

import io
import os
import signal
import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

# To here: the size of a file, the first row that is wanted, bytes that a row may have, and whether to go row by row.
FILE = struct.Struct("<QQQ?")
# To here: how many bytes follow, of the file.
PIECE = struct.Struct("<Q")
# From here: what it is, a position or row, and a size; what is so long follows, but where bytes are asked for.
FRAME = struct.Struct("<cQQ")
READ, BATCH, LARGE_ROW, MALFORMED, NO_MEMORY, END = b"r", b"b", b"o", b"f", b"m", b"e"

# Bytes that are asked for at a time.
PIECE_BYTES = 4 << 20
# Of a batch: rows, and bytes, unless one row has more.
_BATCH_ROWS = 256
_BATCH_BYTES = 4 << 20
_BUFFER_BYTES = 1 << 20
# For one batch, however long the server takes to answer.
_PATIENCE_SECONDS = 600


class _Remote(io.RawIOBase):
    """A file whose bytes the server reads."""

    def __init__(self, asks: BinaryIO, answers: BinaryIO, size: int) -> None:
        super().__init__()
        self._asks, self._answers, self._size = asks, answers, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._position, 0)
        left = left if size < 0 else min(size, left)
        parts = []
        while left:
            _send(self._asks, READ, self._position, min(left, PIECE_BYTES))
            (length,) = PIECE.unpack(_exactly(self._answers, PIECE.size))
            if not length:
                break
            parts.append(_exactly(self._answers, length))
            self._position += length
            left -= length
        return b"".join(parts)


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        sys.exit(0)  # the server has gone
    return data


def _send(target: BinaryIO, kind: bytes, number: int, size: int, data: bytes | memoryview = b"") -> None:
    target.write(FRAME.pack(kind, number, size))
    target.write(data)
    target.flush()


def main() -> None:
    source, target = sys.stdin.buffer, sys.stdout.buffer
    _bound_memory(int(sys.argv[1]))
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    while head := source.read(FILE.size):
        size, offset, max_row_bytes, row_by_row = FILE.unpack(head)
        row = offset
        try:
            file = _Remote(target, source, size)
            for row, batch in _batches(file, offset, row_by_row):
                row = _give(target, batch, row, max_row_bytes)
        except MemoryError:
            _send(target, NO_MEMORY, row, 0)
            return  # what is left of it is not worth keeping
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            text = str(error).encode("utf-8", "replace")[:1000]
            _send(target, MALFORMED, row, len(text), text)
        else:
            _send(target, END, row, 0)


def _bound_memory(more: int) -> None:
    """So many bytes more than it has. Where the system does not tell, there is no bound."""
    try:
        import resource

        with open("/proc/self/status") as status:
            held = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (held + more, held + more))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, StopIteration, ValueError):
        pass


def _batches(file: Any, offset: int, row_by_row: bool) -> Iterator[tuple[int, Any]]:
    """The rows from `offset` on, each batch with the number of its first."""
    signal.alarm(_PATIENCE_SECONDS)
    parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    group, start = _group_at(parquet.metadata, offset)
    groups = range(group, parquet.metadata.num_row_groups)
    if not groups:
        return
    size = 1 if row_by_row else min(_batch_rows(parquet.metadata.row_group(each)) for each in groups)
    for batch in parquet.iter_batches(size, row_groups=[*groups], use_threads=False):
        end = start + batch.num_rows
        if end > offset:
            first = max(offset, start)
            yield first, batch.slice(first - start)
        start = end
        signal.alarm(_PATIENCE_SECONDS)


def _group_at(metadata: Any, row: int) -> tuple[int, int]:
    """The row group that holds a row, and the first row of that."""
    start = 0
    for group in range(metadata.num_row_groups):
        end = start + metadata.row_group(group).num_rows
        if row < end:
            return group, start
        start = end
    return metadata.num_row_groups, start


def _batch_rows(group: Any) -> int:
    """How many rows of a group to read at a time, as far as its head tells."""
    columns = [group.column(place) for place in range(group.num_columns)]
    size = sum(max(column.total_uncompressed_size, 8 * column.num_values) for column in columns)
    return max(1, min(_BATCH_ROWS, int(group.num_rows) * _BATCH_BYTES // max(int(size), 1)))


def _give(target: BinaryIO, batch: Any, row: int, max_row_bytes: int) -> int:
    """Send the rows of a batch, by what they really have. Returns the row behind them."""
    batch = pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], batch.schema.names)
    waiting = [batch]
    while waiting:
        batch = waiting.pop()
        count = batch.num_rows
        size = sum(map(_size, batch.columns))
        if size > min(_BATCH_BYTES, max_row_bytes) and count > 1:
            waiting += [batch.slice(count // 2), batch.slice(0, count // 2)]
            continue
        if size > max_row_bytes:
            _send(target, LARGE_ROW, row, size)
        elif count:
            written = pa.BufferOutputStream()
            with pa.ipc.new_stream(written, batch.schema) as stream:
                stream.write_batch(batch)
            data = written.getvalue()
            _send(target, BATCH, row, data.size, memoryview(data))
        row += count
    return row


def _plain(column: Any) -> Any:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _size(column: Any) -> int:
    """Bytes of a column where it is used: as an array of numbers, or with an object for each value."""
    kind = column.type
    if not pa.types.is_nested(kind):
        return max(int(column.nbytes), 8 * len(column))
    if _is_list(kind) and not column.null_count:
        flat = column.flatten()
        if _is_number(flat.type) and not flat.null_count:
            return max(int(column.nbytes), len(flat) * max(int(flat.type.bit_width) // 8, 1))
    return int(column.nbytes) + 8 * _values(column)


def _values(array: Any) -> int:
    """How many there are in a column, and in what it nests."""
    if _is_list(array.type):
        return len(array) + _values(array.flatten())
    if pa.types.is_struct(array.type):
        return len(array) + sum(_values(field) for field in array.flatten())
    return len(array)


def _is_list(kind: Any) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_map)
    return any(test(kind) for test in tests)


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


if __name__ == "__main__":
    main()
