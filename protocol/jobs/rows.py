"""Rows of a job's data: requests as they are read from files, and results as they are written. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from protocol.errors import InvalidArgument
from protocol.jobs.job import ItemError
from protocol.messages import Buffer, InferenceResponse


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


@dataclass(frozen=True, slots=True)
class FileRow:
    """What a format finds in a file: a line, values by the names of tensors, or why there is neither.

    Attributes:
        end: the offset behind it.
        values: numpy arrays, or lists of texts or bytes.
    """

    end: int
    line: Buffer | None = None
    values: Mapping[str, Any] | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row of an input.

    Attributes:
        index: its number in the input, from 0.
        file: the name of its file.
        content: what the file has.
        end: the position behind it.
    """

    index: int
    file: str
    content: FileRow
    end: Position


@dataclass(frozen=True, slots=True)
class ResultRow:
    """What has become of a row: responses (one, but of decoupled models), or an error."""

    index: int
    custom_id: str
    responses: Sequence[InferenceResponse] = ()
    error: ItemError | None = None


class MalformedFile(InvalidArgument):
    """A file is not what its format says; other files of the input may be."""
