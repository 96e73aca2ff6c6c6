"""perf_analyzer's `--input-data` JSON: rows or streams of rows, as lists, base64 and with shapes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.messages import Tensor
from trioton.perf.caller import DataError
from trioton.perf.data.dataset import MAX_BYTES, Dataset, Step
from trioton.perf.data.elements import encoded, listed
from trioton.perf.data.inputs import ModelSlots, TensorSlot

# Members of a row that are no inputs, where the model has none of that name.
_PAYLOAD, _TIMESTAMP, _SESSION, _DELAY = "payload", "timestamp", "session_id", "delay"
# Of a file: as JSON its numbers take several times the bytes of their tensors.
MAX_FILE_BYTES = 4 * MAX_BYTES


class InputJson:
    """Reads files for one model. `shapes` are those of inputs with variable dims whose rows do not say theirs."""

    def __init__(self, slots: ModelSlots, shapes: Mapping[str, Sequence[int]]) -> None:
        self._slots = slots
        self._shapes = shapes

    def read(self, paths: Sequence[Path]) -> Dataset:
        """The streams of all files. Rows that are in no stream are one stream for each file.

        Raises:
            DataError: a file cannot be read, or what it holds does not fit the model.
        """
        streams = [stream for path in paths for stream in self._streams(path)]
        if not any(streams):
            raise DataError(f"{', '.join(map(str, paths))}: there is no data")
        return Dataset(tuple(streams))

    def _streams(self, path: Path) -> Iterator[tuple[Step, ...]]:
        document = _document(path)
        rows = _streams_of(document, "data", path)
        expected = _streams_of(document, "validation_data", path) if "validation_data" in document else None
        if expected is not None and [len(stream) for stream in expected] != [len(stream) for stream in rows]:
            raise DataError(f"{path}: 'validation_data' expects as many entries as 'data', in as many streams")
        for number, stream in enumerate(rows):
            yield tuple(
                self._step(row, expected[number][index] if expected else {}, f"{path}, stream {number}, entry {index}")
                for index, row in enumerate(stream)
            )

    def _step(self, row: Any, expected: Any, place: str) -> Step:
        for each in (row, expected):
            if not isinstance(each, dict):
                raise DataError(f"{place}: expected an object of inputs, got {json.dumps(each)[:60]}")
        inputs = {slot.name for slot in self._slots.inputs}
        extra = {name: value for name, value in row.items() if name not in inputs}
        body = _payload(extra.pop(_PAYLOAD), place) if _PAYLOAD in extra else None
        at = _seconds(extra.pop(_TIMESTAMP), _TIMESTAMP, place) if _TIMESTAMP in extra else None
        step = Step(
            body=body,
            at=at,
            delay=_seconds(extra.pop(_DELAY, 0), _DELAY, place),
            session=str(_single(extra.pop(_SESSION, ""))),
        )
        return step if body is not None else replace(step, **self._tensors(row, extra, expected, place))

    def _tensors(
        self, row: Mapping[str, Any], extra: Iterable[str], expected: Mapping[str, Any], place: str
    ) -> dict[str, Any]:
        """The fields of a step that hold tensors."""
        for name in extra:
            self._slots.input(name)  # which says those that there are
        missing = [slot.name for slot in self._slots.inputs if slot.name not in row and not slot.is_optional]
        if missing:
            raise DataError(f"{place}: there is no data for input '{missing[0]}' of model '{self._slots.model}'")
        given = [slot for slot in self._slots.inputs if slot.name in row]
        tensors = {slot.name: self._tensor(slot, row[slot.name], place) for slot in given}
        outputs = {name: self._tensor(self._slots.output(name), value, place) for name, value in expected.items()}
        return {"tensors": tensors, "expected": outputs}

    def _tensor(self, slot: TensorSlot, value: Any, place: str) -> Tensor:
        shape: Any = self._shapes.get(slot.name)
        content = value
        if isinstance(value, dict):
            shape = value.get("shape", shape)
            content = value.get("content", value)
            if not (shape is None or (isinstance(shape, Sequence) and all(type(size) is int for size in shape))):
                raise DataError(f"{place}: input '{slot.name}' expects a list of sizes as its 'shape', got {shape}")
        if isinstance(content, dict):
            if "b64" not in content:
                raise DataError(f"{place}: input '{slot.name}' expects 'content' or 'b64', got {sorted(content)}")
            return encoded(slot, shape, content["b64"], place)
        return listed(slot, shape, content, place)


def _document(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{path}: is larger than {MAX_FILE_BYTES} bytes; use .npz for large tensors")
        document = json.loads(path.read_bytes())  # takes NaN and Infinity, as perf_analyzer does
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as input data: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise DataError(f"{path}: expected an object with the list 'data'")
    return document


def _streams_of(document: Mapping[str, Any], member: str, path: Path) -> list[list[Any]]:
    """The entries of the member by streams; entries beside streams make a stream of their own."""
    entries = document[member]
    if not isinstance(entries, list):
        raise DataError(f"{path}: expected a list as '{member}'")
    streams = [entry for entry in entries if isinstance(entry, list)]
    alone = [entry for entry in entries if not isinstance(entry, list)]
    return [alone, *streams] if alone else streams


def _single(value: Any) -> Any:
    """What may be given as a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _payload(value: Any, place: str) -> Mapping[str, Any]:
    value = _single(value)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected a JSON object as '{_PAYLOAD}'")
    return value


def _seconds(value: Any, member: str, place: str) -> float:
    value = _single(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise DataError(f"{place}: expected milliseconds as '{member}', got {json.dumps(value)[:40]}")
    return float(value) / 1000
