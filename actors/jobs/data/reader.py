"""Reader of a job's input: the rows of its files, one after the other, from any position on. Blocks; for a thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, TypeAlias

from actors.jobs.data.ahead import AheadRoom, read_ahead
from actors.jobs.data.json_lines import read_json_lines
from actors.jobs.data.npz import read_npz
from actors.jobs.data.parquet_reader import ParquetProcesses, ParquetReader
from actors.jobs.data.places import InputFile
from protocol.errors import InvalidArgument, NotFound, Unavailable
from protocol.jobs.rows import FileRow, InputRow, MalformedFile
from protocol.jobs.source import DataFormat, Position

MAX_ROW_BYTES = 64 << 20

ReadRows: TypeAlias = Callable[[BinaryIO, int, int], Iterator[FileRow]]


def read_whole(file: BinaryIO, offset: int, max_row_bytes: int) -> Iterator[FileRow]:
    """A file as one row, whose value has no name."""
    if offset:
        return
    data = file.read(max_row_bytes + 1)
    if len(data) > max_row_bytes:
        yield FileRow(1, error=f"the file has more than {max_row_bytes} bytes")
    else:
        yield FileRow(1, values={"": data})


_READERS: Mapping[DataFormat, ReadRows] = {
    DataFormat.JSON_LINES: read_json_lines,
    DataFormat.NPZ: read_npz,
    DataFormat.IMAGES: read_whole,
}


@dataclass(frozen=True, slots=True)
class SharedBounds:
    """What all readers of a server have together."""

    processes: ParquetProcesses = field(default_factory=ParquetProcesses)
    ahead: AheadRoom = field(default_factory=AheadRoom)


class InputReader:
    """Of one input. A file that is not of its format is one row, with an error; what lies in it before the fault has
    been given by then."""

    def __init__(
        self,
        files: Sequence[InputFile],
        data_format: DataFormat,
        *,
        max_row_bytes: int = MAX_ROW_BYTES,
        shared: SharedBounds | None = None,
    ) -> None:
        """The files in the order of their names, as `files_of` gives them. Without `shared` it reads alone."""
        self._files = files
        self._format = data_format
        self._shared = shared or SharedBounds()
        self._max_row_bytes = max_row_bytes

    def rows(self, start: Position = Position()) -> Generator[InputRow, None, None]:  # noqa: B008 (frozen)
        """The rows from a position on. To be closed if it is not read to its end.

        Raises:
            NotFound: the file of the position has gone.
            InvalidArgument: it has changed since.
            Unavailable: a file cannot be read now.
            ServerError: it can never be read.
        """
        row, first = start.row, self._at(start)
        with self._reader() as read, closing(self._opening(first, start)) as files:
            for file in files:
                offset = start.offset if file.name == start.file else 0
                if offset < 0:
                    continue
                name = file.name if self._format is DataFormat.IMAGES else ""
                for found in self._rows_of(file, offset, read):
                    yield InputRow(row, file.name, found, Position(row + 1, file.name, file.stamp, found.end), name)
                    row += 1

    def _opening(self, first: int, start: Position) -> Generator[InputFile, None, None]:
        """The files from one on; those that are rows are read ahead, but the position's, which is done with."""
        if self._format is not DataFormat.IMAGES:
            yield from self._files[first:]
            return
        wanted = [file for file in self._files[first:] if file.name != start.file or not start.offset]
        yield from read_ahead(wanted, self._max_row_bytes + 1, self._shared.ahead)

    @contextmanager
    def _reader(self) -> Iterator[ReadRows]:
        if self._format is DataFormat.PARQUET:
            with ParquetReader(self._shared.processes) as reader:
                yield reader.read
        else:
            yield _READERS[self._format]

    def _at(self, start: Position) -> int:
        """The place of the position's file."""
        if not start.file:
            return 0
        for place, file in enumerate(self._files):
            if file.name == start.file:
                if file.stamp != start.stamp:
                    raise InvalidArgument(f"the input's file '{file.name}' has changed since its rows were read")
                return place
        raise NotFound(f"the input's file '{start.file}' has gone, of which rows were read")

    def _rows_of(self, file: InputFile, offset: int, read: ReadRows) -> Iterator[FileRow]:
        try:
            with closing(file.open()) as opened:
                yield from read(opened, offset, self._max_row_bytes)
        except MalformedFile as error:
            yield FileRow(-1, error=f"file '{file.name}': {error.message}")
        except OSError as error:
            raise Unavailable(f"file '{file.name}' cannot be read: {error.strerror or error}") from None
