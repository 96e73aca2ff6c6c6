"""Requests that a server has captured (docs/capture.md): JSON lines, or Parquet, to be sent again as they were."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from protocol.datatypes import BY_PROTOCOL_NAME
from protocol.messages import Tensor, encode_bytes_elements
from trioton.perf.caller import DataError
from trioton.perf.data.dataset import MAX_BYTES, MAX_STEPS, Dataset, Step
from trioton.perf.data.elements import listed
from trioton.perf.data.inputs import ModelSlots, TensorSlot

ENDINGS = (".jsonl", ".parquet")
# A line is a request with its responses.
_MAX_LINE_BYTES = 64 << 20
# Parameters that are the sequence's own, and are given anew.
_OF_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")


def read_captured(path: Path, slots: ModelSlots) -> Dataset:
    """The requests of a file or of all files of a folder that were answered and captured whole, in the order of their
    time; `Step.at` counts from the first. Requests of one sequence are a stream, all others another.

    Raises:
        DataError: a file cannot be read, or there is no such request.
    """
    steps: list[tuple[float, str, Step]] = []
    left, size, is_full = 0, 0, False
    for number, entry in enumerate(_entries(path), start=1):
        if entry.get("model", slots.model) != slots.model or not _is_whole(entry):
            left += 1
            continue
        if len(steps) >= MAX_STEPS or size >= MAX_BYTES:
            is_full = True
            break
        place = f"{path}, request {number}"
        step = _step(entry, slots, place)
        size += step.byte_size
        steps.append((_moment(entry.get("time"), place), _sequence(entry), step))
    if not steps:
        raise DataError(f"{path}: there is no request to model '{slots.model}' that was answered and captured whole")
    notes = []
    if left:
        notes.append(f"{path}: {left} requests are left out: failed, to other models, or not captured whole")
    if is_full:
        notes.append(f"{path}: the first {len(steps)} requests are used; more would not fit into memory")
    return Dataset(_streams(steps), tuple(notes))


def _streams(steps: list[tuple[float, str, Step]]) -> tuple[tuple[Step, ...], ...]:
    steps.sort(key=lambda each: each[0])  # stable: files of one server are in order
    first = steps[0][0]
    streams: dict[str, list[Step]] = {}
    for moment, sequence, step in steps:
        placed = Step(tensors=step.tensors, rows=step.rows, parameters=step.parameters, at=moment - first)
        streams.setdefault(sequence, []).append(placed)
    return tuple(map(tuple, streams.values()))


def _step(entry: Mapping[str, Any], slots: ModelSlots, place: str) -> Step:
    request = entry["request"]
    tensors = {each["name"]: _tensor(slots.input(each["name"]), each, slots, place) for each in request["inputs"]}
    missing = [slot.name for slot in slots.inputs if slot.name not in tensors and not slot.is_optional]
    if missing:
        raise DataError(f"{place}: there is no input '{missing[0]}' of model '{slots.model}'")
    rows = 1
    if slots.is_batching:
        sized = [tensors[slot.name] for slot in slots.inputs if slot.name in tensors and not slot.is_shape_tensor]
        rows = sized[0].shape[0] if sized else 1
    given = request.get("parameters", {})
    parameters = {name: value for name, value in given.items() if name not in _OF_SEQUENCES}
    return Step(tensors=tensors, rows=rows, parameters=parameters)


def _tensor(slot: TensorSlot, entry: Mapping[str, Any], slots: ModelSlots, place: str) -> Tensor:
    """As the request had it, with its batch dimension."""
    has_rows = slots.is_batching and not slot.is_shape_tensor
    dims = (-1, *slot.dims) if has_rows else slot.dims
    datatype = BY_PROTOCOL_NAME.get(entry["datatype"])
    if datatype is not slot.datatype:
        raise DataError(f"{place}: input '{slot.name}' expects {slot.datatype.name}, got {entry['datatype']}")
    whole = TensorSlot(slot.name, slot.datatype, dims)
    if "data_base64" in entry:
        try:
            texts = [base64.b64decode(text, validate=True) for text in entry["data_base64"]]
        except (binascii.Error, ValueError, TypeError):
            raise DataError(f"{place}: input '{slot.name}' expects base64 in 'data_base64'") from None
        listed(whole, entry["shape"], [""] * len(texts), place)  # which checks the shape
        return Tensor(slot.name, slot.datatype, tuple(entry["shape"]), encode_bytes_elements(texts))
    values = entry["data"]
    if slot.datatype.dtype.kind in "fV":  # numbers that JSON does not have were written as null
        values = [float("nan") if value is None else value for value in values]
    return listed(whole, entry["shape"], values, place)


def _is_whole(entry: Mapping[str, Any]) -> bool:
    """Whether it was answered, and all of its tensors are there."""
    inputs = entry.get("request", {}).get("inputs", ())
    return entry.get("outcome") == "ok" and all(
        ("data" in each or "data_base64" in each) and not each.get("is_cut") for each in inputs
    )


def _sequence(entry: Mapping[str, Any]) -> str:
    found = entry["request"].get("parameters", {}).get("sequence_id", 0)
    return str(found) if found else ""


def _moment(text: Any, place: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        raise DataError(f"{place}: expected a moment as 'time', got {str(text)[:40]!r}") from None


def _entries(path: Path) -> Iterator[Mapping[str, Any]]:
    """Those of all files, oldest first, whose names begin with a time."""
    files = sorted(each for each in path.iterdir() if each.suffix in ENDINGS) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: there is no file that ends in {' or '.join(ENDINGS)}")
    for file in files:
        try:
            yield from _rows_of_parquet(file) if file.suffix == ".parquet" else _lines(file)
        except (OSError, ValueError) as error:
            raise DataError(f"{file}: cannot be read as a capture: {error}") from None


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    with file.open("rb") as opened:
        while line := opened.readline(_MAX_LINE_BYTES):
            entry = json.loads(line)
            if not isinstance(entry, dict) or not isinstance(entry.get("request"), dict):
                raise ValueError("expected an object with 'request' in each line")
            yield entry


def _rows_of_parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{file}: Parquet needs the package pyarrow: install trioton[parquet]") from None
    columns = ["time", "model", "outcome", "request"]
    with parquet.ParquetFile(file) as opened:
        for batch in opened.iter_batches(batch_size=64, columns=columns):
            for row in batch.to_pylist():
                moment = row["time"]
                time = moment.isoformat() if isinstance(moment, datetime) else moment
                yield {**row, "time": time, "request": json.loads(row["request"])}
