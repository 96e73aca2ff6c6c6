"""Files of jobs: opens the input and the output of a job's source, in places that are allowed. Blocks."""

from __future__ import annotations

from collections.abc import Mapping

from actors.jobs.data.allowed import AllowedPlaces
from actors.jobs.data.parquet import require_pyarrow
from actors.jobs.data.places import files_of, parse_place, reads, target_of
from actors.jobs.data.reader import InputReader, SharedBounds
from actors.jobs.data.writer import EncodeLine, OutputWriter, file_names
from protocol.errors import InvalidArgument
from protocol.jobs.source import DataFormat, JobSource


class JobFiles:
    """Those of one server."""

    def __init__(self, allowed: AllowedPlaces, environment: Mapping[str, str], encode_line: EncodeLine) -> None:
        self._allowed = allowed
        self._environment = environment
        self._encode_line = encode_line
        self._shared = SharedBounds()

    def check(self, source: JobSource) -> None:
        """What can be known before a job is made, without a look into a bucket.

        Raises:
            Forbidden: a place is not allowed.
            InvalidArgument: a place is none.
            Unsupported: a package is missing.
        """
        read, _ = self._allowed.check(parse_place(source.input.url))
        written, _ = self._allowed.check(parse_place(source.output.url))
        if "*" in source.output.url:
            raise InvalidArgument(f"output '{source.output.url}': expected a folder, got a pattern")
        for name in file_names(0, source.output.format):
            if reads(read, source.input.format, written, name):
                raise InvalidArgument(
                    f"output '{source.output.url}' lies in input '{source.input.url}', which would read it: choose "
                    f"another folder"
                )
        if DataFormat.PARQUET in (source.input.format, source.output.format):
            require_pyarrow()

    def reader(self, source: JobSource) -> InputReader:
        """Raises ServerError."""
        place, within = self._allowed.check(parse_place(source.input.url))
        data_format = source.input.format
        files = files_of(place, data_format, self._environment, within)
        return InputReader(files, data_format, shared=self._shared)

    def writer(self, source: JobSource, *, is_batched: bool) -> OutputWriter:
        """An open one. Raises ServerError."""
        place, within = self._allowed.check(parse_place(source.output.url))
        target = target_of(place, self._environment, within)
        writer = OutputWriter(target, source.output.format, self._encode_line, is_batched=is_batched)
        writer.open()
        return writer
