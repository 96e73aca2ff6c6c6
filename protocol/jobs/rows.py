"""Rows of a job's data: requests as they are read from files, and results as they are written. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.errors import InvalidArgument
from protocol.jobs.job import ItemError
from protocol.jobs.source import Position
from protocol.messages import Buffer, InferenceResponse


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
        name: that of the row itself, where it is a whole file.
    """

    index: int
    file: str
    content: FileRow
    end: Position
    name: str = ""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """What has become of a row: responses (one, but of decoupled models), or an error."""

    index: int
    custom_id: str
    responses: Sequence[InferenceResponse] = ()
    error: ItemError | None = None


class MalformedFile(InvalidArgument):
    """A file is not what its format says; other files of the input may be."""
