"""Reader of Parquet files: each is decoded by a process of its own (`parquet_child`), which may not take much memory.
Blocks.

A file can decode to a thousand times its size: values that repeat are written once, and pages are compressed. So the
process has a bound on its memory, and what comes from it are batches of a few MiB, or one row.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from actors.jobs.data.parquet import require_pyarrow
from protocol.errors import Overloaded
from protocol.jobs.rows import FileRow, MalformedFile

# Processes of one server; one has some 100 MB without a file.
MOST_PROCESSES = 32
# Beside four times what a row may have.
MEMORY_BYTES = 1 << 30

# Rows of a file that are too large, each of which takes long to decode; with more of them the file is given up.
MOST_LARGE_ROWS = 100

_PROGRAM = Path(__file__).with_name("parquet_child.py")


class ParquetProcesses:
    """How many may run at the same time."""

    def __init__(self, most: int = MOST_PROCESSES) -> None:
        self._most = most
        self._left = threading.Semaphore(most)

    def take(self) -> None:
        """Raises Overloaded."""
        if not self._left.acquire(blocking=False):
            raise Overloaded(f"{self._most} inputs in Parquet are read already, which is the most at the same time")

    def give_back(self) -> None:
        self._left.release()


class ParquetReader:
    """Reads files one after the other, in a process that is started for the first and ended by `with`."""

    def __init__(self, processes: ParquetProcesses) -> None:
        self._processes = processes
        self._child: _Child | None = None

    def __enter__(self) -> ParquetReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def read(self, file: BinaryIO, offset: int, max_row_bytes: int) -> Iterator[FileRow]:
        """The rows from a row on: numbers, texts, bytes, and lists of them.

        Raises:
            MalformedFile: the file is not what it should be, or cannot be decoded within the bound on memory.
            Overloaded: too many files are read.
            Unsupported: pyarrow is not installed.
        """
        require_pyarrow()
        memory = MEMORY_BYTES + 4 * max_row_bytes
        row = offset
        for row_by_row in (False, True):  # once more, to know the row
            try:
                for found in self._rows(file, row, max_row_bytes, memory, row_by_row=row_by_row):
                    yield found
                    row = found.end
            except _Died:
                self._end()
            else:
                return
        raise MalformedFile(f"row {row} cannot be decoded with {memory} bytes of memory")

    def _rows(
        self, file: BinaryIO, offset: int, max_row_bytes: int, memory: int, *, row_by_row: bool
    ) -> Iterator[FileRow]:
        from actors.jobs.data import parquet_child as child_of

        if self._child is None:
            self._processes.take()
            try:
                self._child = _Child(memory)
            except BaseException:
                self._processes.give_back()
                raise
        child = self._child
        large, is_at_end = 0, False
        try:
            size = file.seek(0, os.SEEK_END)
            child.send(child_of.FILE.pack(size, offset, max_row_bytes, row_by_row))
            while True:
                kind, number, length = child_of.FRAME.unpack(child.receive(child_of.FRAME.size))
                match kind:
                    case child_of.READ:
                        file.seek(number)
                        data = file.read(min(length, child_of.PIECE_BYTES))
                        child.send(child_of.PIECE.pack(len(data)), data)
                    case child_of.BATCH:
                        for place, values in enumerate(_batch_rows(child.receive(length)), number + 1):
                            yield FileRow(place, values=values)
                    case child_of.LARGE_ROW:
                        text = f"the row has {length} bytes, expected at most {max_row_bytes}"
                        yield FileRow(number + 1, error=text)
                        large += 1
                        if large == MOST_LARGE_ROWS:
                            raise MalformedFile(f"{large} rows have more than {max_row_bytes} bytes")
                    case child_of.MALFORMED:
                        is_at_end = True
                        raise MalformedFile(f"no Parquet file: {child.receive(length).decode('utf-8', 'replace')}")
                    case child_of.END:
                        is_at_end = True
                        return
                    case _:
                        raise _Died
        finally:
            if not is_at_end:
                self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()
            self._processes.give_back()


class _Died(Exception):
    """The process has ended, or has no memory left."""


class _Child:
    """The process, and the pipes to it and from it."""

    def __init__(self, memory: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # The system's allocator takes what is asked for, and no arenas before.
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def send(self, *parts: bytes) -> None:
        """Raises _Died."""
        try:
            for part in parts:
                self._to.write(part)
            self._to.flush()
        except BrokenPipeError:
            raise _Died from None

    def receive(self, size: int) -> bytes:
        """Raises _Died."""
        data = self._from.read(size)
        if len(data) < size:
            raise _Died
        return data

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._from, self._to):
            with suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()


def _batch_rows(data: bytes) -> Iterator[dict[str, Any]]:
    """Columns with no value in a row are left out of it."""
    import pyarrow as pa

    for batch in pa.ipc.open_stream(data):
        columns = {name: _values(batch.column(place)) for place, name in enumerate(batch.schema.names)}
        for place in range(batch.num_rows):
            yield {name: values[place] for name, values in columns.items() if values[place] is not None}


def _values(column: Any) -> Sequence[Any]:
    """The values of a column: of lists of numbers, the usual case, without an object for each number."""
    import pyarrow as pa

    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not _is_number(kind.value_type) or column.null_count:
        return column.to_pylist()  # type: ignore[no-any-return]
    flat = column.flatten()
    if flat.null_count:
        return column.to_pylist()  # type: ignore[no-any-return]
    numbers = flat.to_numpy(zero_copy_only=False)
    ends = column.value_lengths().to_numpy(zero_copy_only=False).cumsum()
    return [numbers[start:end] for start, end in zip((0, *ends[:-1]), ends, strict=True)] if len(ends) else []


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
