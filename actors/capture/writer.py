"""Capture writer: collects encoded calls by model, and writes a file of them when it is large or old enough.

Used by one thread at a time. What cannot be written is lost, and counted.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from actors.capture.captured_call import CapturedCall
from actors.capture.encoding import CallEncoder
from actors.capture.parquet import parquet_file, require_pyarrow
from actors.capture.settings import CaptureFormat, CaptureSettings
from protocol.errors import ServerError, text_of
from repository.stores.targets import FileTarget

# Of a folder's name: file systems take 255.
_MOST_NAME_BYTES = 200


class _Buffer:
    """What is collected of one model: lines of JSON, or rows."""

    __slots__ = ("rows", "since", "size")

    def __init__(self, since: float) -> None:
        self.rows: list[Any] = []
        self.size = 0
        self.since = since


class CaptureWriter:
    """Attributes:
    buffered_bytes: of what is not in a file yet.
    due_at: when `flush` has something to do again, in the caller's time.
    """

    def __init__(self, settings: CaptureSettings, target: FileTarget) -> None:
        self._settings = settings
        self._target = target
        self._encoder = CallEncoder(settings.redacted, settings.max_tensor_bytes)
        self._buffers: dict[str, _Buffer] = {}
        # Several servers may write to one place, and one server again after its restart.
        self._name = secrets.token_hex(4)
        self._number = 0
        self._written = 0
        self._lost = 0
        self._problem = ""
        self.buffered_bytes = 0
        self.due_at = math.inf

    def open(self) -> None:
        """Raises OSError or ServerError: nothing can be written."""
        if self._settings.format is CaptureFormat.PARQUET:
            require_pyarrow()
        self._target.open()

    def take(self, calls: Sequence[CapturedCall], now: float) -> None:
        """Collect calls."""
        for call in calls:
            try:
                row, size = self._encoded(call)
            except Exception as error:  # of a tensor that a model has made; it costs this call alone
                self._lose(1, f"a request to model '{call.model}' could not be encoded: {text_of(error)}")
                continue
            buffer = self._buffers.get(call.model)
            if buffer is None:
                buffer = self._buffers[call.model] = _Buffer(now)
            buffer.rows.append(row)
            buffer.size += size
            self.buffered_bytes += size

    def _encoded(self, call: CapturedCall) -> tuple[Any, int]:
        if self._settings.format is CaptureFormat.JSON_LINES:
            line = self._encoder.line(call)
            return line, len(line)
        row = self._encoder.described(call)
        # Lists of Python's numbers take several times their text.
        return row, 4 * len(msgspec.json.encode(row))

    def flush(self, now: float, *, is_last: bool = False) -> None:
        """Write the files that are due: of a model that has enough, or has waited long enough; and the largest, where
        all together have half of the memory."""
        settings = self._settings
        for model, buffer in list(self._buffers.items()):
            if is_last or buffer.size >= settings.file_bytes or now >= buffer.since + settings.file_seconds:
                self._write(model)
        while self.buffered_bytes > settings.memory_bytes // 2:
            self._write(max(self._buffers, key=lambda model: self._buffers[model].size))
        oldest = min((buffer.since for buffer in self._buffers.values()), default=math.inf)
        self.due_at = oldest + settings.file_seconds

    def _write(self, model: str) -> None:
        buffer = self._buffers.pop(model)
        self.buffered_bytes -= buffer.size
        self._number += 1
        time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        name = f"{_folder_of(model)}/{time}-{self._name}-{self._number:06}.{self._settings.format}"
        try:
            self._target.write(name, self._file(buffer.rows))
        except (OSError, ServerError) as error:
            self._lose(len(buffer.rows), text_of(error))
        except Exception as error:  # of the library that writes the format
            self._lose(len(buffer.rows), f"model '{model}': {text_of(error)}")
        else:
            self._written += len(buffer.rows)

    def _file(self, rows: Sequence[bytes] | Sequence[Mapping[str, Any]]) -> bytes:
        if self._settings.format is CaptureFormat.JSON_LINES:
            return b"".join(rows)  # type: ignore[arg-type]  # by the format
        return parquet_file(rows)  # type: ignore[arg-type]

    def _lose(self, count: int, problem: str) -> None:
        self._lost += count
        self._problem = problem

    def take_written(self) -> int:
        """How many calls are in files, since this was last asked."""
        written, self._written = self._written, 0
        return written

    def take_lost(self) -> tuple[int, str]:
        """How many calls are lost, since this was last asked, and why the last of them is."""
        lost, self._lost = self._lost, 0
        return lost, self._problem


def _folder_of(model: str) -> str:
    """Its name as one of a folder; where that would be too long for file systems, its begin and a hash."""
    folder = quote(model, safe="").replace(".", "%2E") if model in (".", "..") else quote(model, safe="")
    if len(folder) <= _MOST_NAME_BYTES:
        return folder
    return f"{folder[: _MOST_NAME_BYTES - 17]}-{hashlib.sha256(model.encode()).hexdigest()[:16]}"
