"""Writer of a job's results: files of rows in order, those that have failed apart. Blocks; for a thread.

A file is named after its first row, and written whole: what is written again after a crash takes the place of what was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, TypeAlias

from actors.jobs.data import tables
from actors.jobs.data.parquet import require_pyarrow, write_parquet
from protocol.errors import InvalidArgument, ServerError, Unavailable
from protocol.jobs.job import ItemError
from protocol.jobs.rows import ResultRow
from protocol.jobs.source import DataFormat
from repository.stores.targets import FileTarget

EncodeLine: TypeAlias = Callable[[ResultRow], bytes]
"""A result as a line of JSON; may raise ServerError where it has no such form."""

_LASTING = (PermissionError, FileExistsError, NotADirectoryError, IsADirectoryError)


def file_names(first: int, data_format: DataFormat) -> tuple[str, str]:
    """Of results and of errors, by their first row."""
    return f"results-{first:012}.{data_format}", f"errors-{first:012}.{DataFormat.JSON_LINES}"


class OutputWriter:
    """Of one output."""

    def __init__(
        self, target: FileTarget, data_format: DataFormat, encode_line: EncodeLine, *, is_batched: bool = False
    ) -> None:
        """`is_batched` where the first dimension of outputs is the batch, of which a row is one."""
        self._target = target
        self._is_batched = is_batched
        self._format = data_format
        self._encode_line = encode_line

    def open(self) -> None:
        """Raises ServerError: nothing can be written."""
        if self._format is DataFormat.PARQUET:
            require_pyarrow()
        with _os_errors():
            self._target.open()

    def write(self, rows: Iterable[ResultRow]) -> int:
        """Write files of these rows, which come in order: `results-<first row>` in the format, and
        `errors-<first row>.jsonl`. A result that the format cannot hold is among the errors.

        Raises:
            ServerError: they could not be written; some files may be there.
        """
        fits: list[tuple[ResultRow, Any]] = []
        failed: list[bytes] = []
        first_of_all = -1
        for row in rows:
            first_of_all = row.index if first_of_all < 0 else first_of_all
            try:
                if row.error is None:
                    fits.append((row, self._prepared(row)))
                else:
                    failed.append(self._encode_line(row))
            except ServerError as error:
                told = ItemError(error.kind, f"the result does not fit format {self._format}: {error.message}")
                failed.append(self._encode_line(ResultRow(row.index, row.custom_id, error=told)))
        for first, data in self._files(fits):
            self._write(file_names(first, self._format)[0], data)
        if failed:
            self._write(file_names(first_of_all, self._format)[1], b"".join(failed))
        return len(failed)

    def _prepared(self, row: ResultRow) -> Any:
        if self._format is DataFormat.JSON_LINES:
            return self._encode_line(row)
        if len(row.responses) != 1:
            raise InvalidArgument(f"expected one response, got {len(row.responses)}; jsonl holds any number")
        arrays = tables.arrays_of(row.responses[0], is_batched=self._is_batched)
        if self._format is DataFormat.NPZ:
            tables.check_npz(arrays)
        return arrays

    def _files(self, rows: Sequence[tuple[ResultRow, Any]]) -> Iterator[tuple[int, bytes]]:
        """The first row and the content of each file: several where arrays do not fit into one."""
        if not rows:
            return
        if self._format is DataFormat.JSON_LINES:
            yield rows[0][0].index, b"".join(line for _, line in rows)
            return
        is_npz = self._format is DataFormat.NPZ
        for _, group in groupby(rows, key=lambda pair: tables.likeness(pair[1], by_shape=is_npz)):
            alike = list(group)
            columns = tables.columns_of([row for row, _ in alike], [arrays for _, arrays in alike])
            yield alike[0][0].index, tables.npz(columns) if is_npz else write_parquet(columns)

    def _write(self, name: str, data: bytes) -> None:
        with _os_errors():
            self._target.write(name, data)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Raises errors of ours in place of the system's own: Unavailable where a disk may have room again."""
    try:
        yield
    except OSError as error:
        kind = InvalidArgument if isinstance(error, _LASTING) else Unavailable
        raise kind(f"the output cannot be written: {error.strerror or error}") from None
