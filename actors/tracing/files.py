"""Trace mode `triton`: writes finished traces to JSON files.

Flow: tracer → [trace files] → disk. Plain and blocking; the tracer calls it in a thread. After each call the files are
complete JSON arrays, so that a crash loses no trace that was written. Source: Triton, "Tracing".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import FileIO
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np

from actors.tracing.record import RecordedTensor, RequestTrace
from actors.tracing.sampling import TraceStream
from actors.tracing.sink import CannotTrace
from protocol.datatypes import DataType
from protocol.messages import Tensor

_OPEN, _BETWEEN, _CLOSE = b"[\n", b",\n", b"\n]\n"


class TraceFiles:
    """The trace files of one server: `file` for the traces without a log frequency, `file.0`, `file.1`, … for the
    others. Files of an earlier run are overwritten."""

    def __init__(self, file: str) -> None:
        """Raises CannotTrace if the file's directory is not there."""
        self._file = file
        self._is_begun = False
        self._next_index = 0
        if file and not Path(file).absolute().parent.is_dir():
            raise CannotTrace(f"the directory of the trace file '{file}' does not exist")

    def write(self, traces: Sequence[RequestTrace]) -> None:
        """Raises OSError; what is in the files by then stays readable."""
        for stream, part in groupby(traces, key=lambda trace: trace.sampling.stream):
            self._write_stream(stream, list(part))

    def close(self) -> None:
        pass  # nothing is left open or unwritten

    def abort(self) -> None:
        pass

    def _write_stream(self, stream: TraceStream, traces: list[RequestTrace]) -> None:
        if not stream.log_frequency:
            _append(self._file, traces, is_new=not self._is_begun)
            self._is_begun = True
            return
        while traces:
            is_new = stream.index < 0 or stream.written >= stream.log_frequency
            if is_new:
                stream.index, stream.written = self._next_index, 0
                self._next_index += 1
            part = traces[: stream.log_frequency - stream.written]
            _append(f"{self._file}.{stream.index}", part, is_new=is_new)
            stream.written += len(part)
            traces = traces[len(part) :]


def _append(path: str, traces: Iterable[RequestTrace], *, is_new: bool) -> None:
    """Put entries at the end of the array in a file, or of a new array. What cannot be written leaves it as it was."""
    entries = _BETWEEN.join(entry for trace in traces for entry in trace_entries(trace))
    with open(path, "wb" if is_new or not os.path.exists(path) else "r+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        start = max(0, end - len(_CLOSE))
        try:
            _write_at(file, start, (_BETWEEN if end else _OPEN) + entries + _CLOSE)
        except OSError:
            with suppress(OSError):
                file.truncate(start)
                if end:
                    _write_at(file, start, _CLOSE)
            raise


def _write_at(file: FileIO, position: int, data: bytes) -> None:
    file.seek(position)
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def trace_entries(trace: RequestTrace) -> list[bytes]:
    """The JSON objects of one trace: what was asked for, when what happened, and the tensors."""
    model: dict[str, object] = {
        "id": trace.id,
        "model_name": trace.model_name,
        "model_version": trace.model_version,
    }
    if trace.parent_id:
        model["parent_id"] = trace.parent_id
    if trace.request_id:
        model["request_id"] = trace.request_id
    entries: list[dict[str, object]] = [model]
    if trace.stamps:
        stamps = sorted(trace.stamps, key=lambda stamp: stamp[1])
        entries.append({"id": trace.id, "timestamps": [{"name": name, "ns": ns} for name, ns in stamps]})
    entries.extend(_tensor_entry(trace.id, recorded) for recorded in trace.tensors)
    return [msgspec.json.encode(entry) for entry in entries]


def _tensor_entry(id: int, recorded: RecordedTensor) -> dict[str, object]:
    tensor = recorded.tensor
    described = {
        "name": tensor.name,
        "data": _data_text(tensor),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.datatype.name,
    }
    return {"id": id, "activity": recorded.activity, "tensor": described}


def _data_text(tensor: Tensor) -> str:
    """The elements, separated by commas: texts in quotes, floats as short as their datatype allows."""
    elements = tensor.as_numpy().reshape(-1)
    match tensor.datatype:
        case DataType.BYTES:
            return ",".join(f'"{element.decode("utf-8", "backslashreplace")}"' for element in elements)
        case DataType.BOOL:
            return ",".join("true" if element else "false" for element in elements.tolist())
        case DataType.BF16 | DataType.FP16 | DataType.FP32 | DataType.FP64:
            wide = elements.astype(np.float32) if tensor.datatype is DataType.BF16 else elements
            return ",".join(wide.astype(np.str_).tolist())
    return ",".join(map(str, elements.tolist()))
