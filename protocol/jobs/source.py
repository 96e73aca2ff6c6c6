"""Sources of jobs: where the rows of a job come from that has none in its request, and where its results go. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from protocol.messages import LATEST_VERSION


class DataFormat(StrEnum):
    """How files hold rows: a JSON object on each line, a row of columns, the arrays' places along their first axis, or
    the whole file as one row."""

    JSON_LINES = "jsonl"
    PARQUET = "parquet"
    NPZ = "npz"
    IMAGES = "images"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """By which files of a folder are known."""
        return _SUFFIXES[self]


_SUFFIXES = {
    DataFormat.JSON_LINES: (".jsonl", ".ndjson", ".json"),
    DataFormat.PARQUET: (".parquet", ".pq"),
    DataFormat.NPZ: (".npz",),
    DataFormat.IMAGES: (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"),
}
OUTPUT_FORMATS = (DataFormat.JSON_LINES, DataFormat.PARQUET, DataFormat.NPZ)


def format_of(name: str) -> DataFormat | None:
    """The format of a file, by the suffix of its name; None where that says nothing."""
    lower = name.lower()
    return next((each for each in DataFormat if lower.endswith(each.suffixes)), None)


class Position(msgspec.Struct, frozen=True):
    """A place between two rows of an input, from which it can be read on.

    Attributes:
        row: how many rows lie before it.
        file: the file that it lies in; empty before the first.
        stamp: of that file, to see whether it has changed.
        offset: in that file: in bytes of JSON lines, else in rows; -1 behind its end.
    """

    row: int = 0
    file: str = ""
    stamp: str = ""
    offset: int = 0


class DataPlace(msgspec.Struct, frozen=True):
    """Files of a format: as input a file, a folder or a pattern, as output a folder."""

    url: str
    format: DataFormat


class JobSource(msgspec.Struct, frozen=True):
    """Each row of the input is a request to the model."""

    model: str
    input: DataPlace
    output: DataPlace
    version: int = LATEST_VERSION

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes | str) -> JobSource:
        return _read_source(data)


class Progress(msgspec.Struct, frozen=True):
    """How far a job with a source is.

    Attributes:
        position: behind the rows that are items of the job, or were.
        is_read: those are all that there are.
        written: of so many rows the results are in the output; they are no items any more.
    """

    position: Position = Position()
    is_read: bool = False
    written: int = 0

    @property
    def held(self) -> int:
        """How many rows are items of the job."""
        return self.position.row - self.written


_read_source = msgspec.json.Decoder(JobSource).decode
