"""Output of a run: one file of JSON lines, or a folder of files in any format; rows that failed are apart. Blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from actors.jobs.data.writer import OutputWriter
from protocol.errors import ServerError
from protocol.jobs.job import ItemError
from protocol.jobs.rows import ResultRow
from trioton.batch.openai_lines import encode_line
from trioton.batch.state import Ends, UnusableState, sync_folder
from trioton.batch.window import byte_size

# A file of a folder holds so much, at most, or what comes in so long a time.
_PART_BYTES = 64 << 20
_PART_ROWS = 50_000
_PART_SECONDS = 60.0
_PARTS = re.compile(r"(?:results|errors)-(\d+)\..*")


class LinesOutput:
    """Implements `trioton.batch.run.Results`: appends lines of JSON to a file, and those of failures to another, which
    is there once something has failed. A new start cuts off what came after the last checkpoint."""

    checkpoint_seconds = 1.0
    is_full = False

    def __init__(self, results: Path, errors: Path) -> None:
        self.failures = 0
        self._places = results, errors
        self._results: BinaryIO | None = None
        self._errors: BinaryIO | None = None

    def open(self, ends: Ends) -> None:
        """Raises OSError; UnusableState where there is less than was written."""
        results, errors = self._places
        self._results = _opened(results, ends.results)
        if ends.errors:
            self._errors = _opened(errors, ends.errors)
        else:
            errors.unlink(missing_ok=True)
        sync_folder(results.parent)

    def write(self, results: Sequence[ResultRow]) -> None:
        assert self._results is not None  # opened
        lines: list[bytes] = []
        failures: list[bytes] = []
        for row in results:
            try:
                (lines if row.error is None else failures).append(encode_line(row))
            except ServerError as error:
                told = ItemError(error.kind, f"the result does not fit into JSON lines: {error.message}")
                failures.append(encode_line(ResultRow(row.index, row.custom_id, error=told)))
        self._results.write(b"".join(lines))
        if failures:
            self._open_errors().write(b"".join(failures))
        self.failures += len(failures)

    def checkpoint(self) -> Ends:
        return Ends(_synced(self._results), _synced(self._errors))

    def close(self) -> None:
        for file in (self._results, self._errors):
            if file is not None:
                file.close()

    def _open_errors(self) -> BinaryIO:
        if self._errors is None:
            _, errors = self._places
            self._errors = _opened(errors, 0)
            sync_folder(errors.parent)
        return self._errors


def _opened(path: Path, end: int) -> BinaryIO:
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")
    try:
        size = file.seek(0, os.SEEK_END)
        if size < end:
            raise UnusableState(
                f"'{path}' has {size} bytes, and should have {end} at least: it was changed; --restart begins anew"
            )
        file.truncate(end)
        file.seek(end)
    except BaseException:
        file.close()
        raise
    return file


def _synced(file: BinaryIO | None) -> int:
    if file is None:
        return 0
    file.flush()
    os.fsync(file.fileno())
    return file.tell()


class FolderOutput:
    """Implements `trioton.batch.run.Results`: files of a folder or a bucket, each written whole at a checkpoint."""

    checkpoint_seconds = _PART_SECONDS

    def __init__(self, writer: OutputWriter) -> None:
        self._writer = writer
        self.failures = 0
        self._rows: list[ResultRow] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes >= _PART_BYTES or len(self._rows) >= _PART_ROWS

    def write(self, results: Sequence[ResultRow]) -> None:
        self._rows += results
        self._bytes += sum(map(byte_size, results))
        self.failures += _failed(results)

    def checkpoint(self) -> Ends:
        if self._rows:
            self.failures += self._writer.write(self._rows) - _failed(self._rows)
        self._rows, self._bytes = [], 0
        return Ends()

    def close(self) -> None:
        """Nothing is open."""


def _failed(rows: Sequence[ResultRow]) -> int:
    return sum(row.error is not None for row in rows)


def parts_from(folder: Path, row: int) -> list[Path]:
    """The files of a folder whose first row is this one or a later one. Raises OSError."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        part = _PARTS.fullmatch(path.name)
        if part is not None and int(part[1]) >= row:
            found.append(path)
    return found
