"""Input of a run: the rows of its files that are its own, as requests to the model. Blocks; for a thread."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from actors.jobs.data.places import InputFile
from actors.jobs.data.reader import InputReader
from protocol.errors import Internal, ServerError, text_of
from protocol.http.codec.job_rows import RowDecoder
from protocol.jobs.rows import InputRow
from protocol.jobs.source import DataFormat, Position
from protocol.messages import InferenceRequest
from trioton.batch.attempts import RequestRow
from trioton.batch.openai_lines import RouteRequest, read_route_line

# What is read at once, at most.
_ROWS = 256
_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """Of `count` machines that share an input this is number `number`, from 1: each has every so many-th row."""

    number: int = 1
    count: int = 1

    def has(self, index: int) -> bool:
        return index % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(slots=True)
class _Opened:
    """An input file that knows how far it was read. Implements `InputFile`."""

    file: InputFile
    before: int  # bytes of the files before it
    opened: BinaryIO | None = None

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def stamp(self) -> str:
        return self.file.stamp

    def open(self) -> BinaryIO:
        self.opened = self.file.open()
        return self.opened

    def bytes_read(self) -> int:
        opened = self.opened
        return self.before + (self.size if opened is None or opened.closed else min(opened.tell(), self.size))


@dataclass(slots=True)
class Input:
    """Implements `trioton.batch.run.Rows`: of the first `limit` rows of the input those of one shard, from `start`
    on. A whole file as a row has the file's name."""

    files: Sequence[InputFile]
    data_format: DataFormat
    decoder: RowDecoder
    has_routes: bool = False  # lines of OpenAI's batch files are requests
    start: Position = Position()  # noqa: RUF009 (frozen)
    shard: Shard = Shard()
    limit: int | None = None
    _fraction: float = 0.0
    _opened: dict[str, _Opened] = field(default_factory=dict)
    _total: int = 0
    _rows: Generator[InputRow, None, None] = field(init=False)

    def __post_init__(self) -> None:
        for file in self.files:
            self._opened[file.name] = _Opened(file, self._total)
            self._total += file.size
        self._rows = InputReader([*self._opened.values()], self.data_format).rows(self.start)

    def read(self) -> Sequence[RequestRow]:
        rows: list[RequestRow] = []
        size = 0
        while len(rows) < _ROWS and size < _BYTES:
            found = next(self._rows, None)
            if found is None or (self.limit is not None and found.index >= self.limit):
                break
            if self.shard.has(found.index):
                row = self._request(found)
                rows.append(row)
                size += _byte_size(row.request)
                self._note(found)
        return rows

    def fraction(self) -> float:
        return self._fraction

    def close(self) -> None:
        """To be called when nobody reads."""
        self._rows.close()
        for file in self._opened.values():
            if file.opened is not None:
                file.opened.close()

    def _request(self, found: InputRow) -> RequestRow:
        request: InferenceRequest | RouteRequest | ServerError
        custom_id = found.name
        try:
            line = found.content.line if self.has_routes else None
            named, request = (line and read_route_line(line)) or self.decoder.decode(found.content)
            custom_id = named or custom_id
        except ServerError as error:
            request = error.with_traceback(None)
            custom_id = custom_id or self.decoder.name_of(found.content)
        except Exception as error:  # a defect costs its row
            request = Internal(f"internal error: {text_of(error)}")
        return RequestRow(found.index, custom_id, request, found.end)

    def _note(self, row: InputRow) -> None:
        of_bytes = self._opened[row.file].bytes_read() / max(self._total, 1)
        of_rows = (row.index + 1) / self.limit if self.limit else 0.0
        self._fraction = max(self._fraction, of_bytes, of_rows)


def _byte_size(request: InferenceRequest | RouteRequest | ServerError) -> int:
    match request:
        case InferenceRequest():
            return sum(tensor.byte_size for tensor in request.inputs)
        case RouteRequest():
            return len(request.body)
    return 0
