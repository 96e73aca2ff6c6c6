"""Inputs from `.npz` files, and from folders with a file for each input."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.datatypes import DataType
from protocol.messages import Tensor, encode_bytes_elements
from trioton.perf.caller import DataError
from trioton.perf.data.dataset import MAX_BYTES, MAX_STEPS, Dataset, Step
from trioton.perf.data.elements import of_array, raw
from trioton.perf.data.inputs import MAX_TENSOR_BYTES, ModelSlots, TensorSlot


def read_npz(path: Path, slots: ModelSlots) -> Dataset:
    """Arrays by the names of inputs; where they have a dimension more than the inputs, it counts the rows.

    Raises:
        DataError: it cannot be read, or its arrays do not fit.
    """
    arrays = _arrays(path, slots)
    counts = {name: _rows(slots.input(name), array, path) for name, array in arrays.items()}
    given = {count for count in counts.values() if count is not None}
    if len(given) > 1 or (given and None in counts.values()):
        shown = ", ".join(f"'{name}' {list(array.shape)}" for name, array in arrays.items())
        raise DataError(f"{path}: the first dimension of each array must count the same rows, got {shown}")
    count = given.pop() if given else None
    if count == 0:
        raise DataError(f"{path}: there are no rows")
    kept = min(count or 1, _most_rows(arrays, count))
    steps = []
    for index in range(kept):
        rows = {name: array if count is None else array[index] for name, array in arrays.items()}
        steps.append(
            Step(tensors={n: of_array(slots.input(n), row, f"{path}, row {index}") for n, row in rows.items()})
        )
    left = (count or 1) - kept
    notes = (f"{path}: of {count} rows the first {kept} are used; more would not fit into memory",) if left else ()
    return Dataset((tuple(steps),), notes)


def read_folder(path: Path, slots: ModelSlots, shapes: Mapping[str, Sequence[int]]) -> Dataset:
    """A file for each input, of its name: raw bytes, or a line for each element of a BYTES input. Files with the names
    of outputs hold what is expected of them.

    Raises:
        DataError: a file is missing, cannot be read, or does not fit.
    """
    missing = [slot.name for slot in slots.inputs if not slot.is_optional and not _file(path, slot.name).is_file()]
    if missing:
        raise DataError(f"{path}: there is no file for input '{missing[0]}' of model '{slots.model}'")

    def tensors(side: Sequence[TensorSlot]) -> dict[str, Tensor]:
        present = [slot for slot in side if _file(path, slot.name).is_file()]
        return {slot.name: _of_file(_file(path, slot.name), slot, shapes.get(slot.name)) for slot in present}

    return Dataset(((Step(tensors=tensors(slots.inputs), expected=tensors(slots.outputs)),),))


def _arrays(path: Path, slots: ModelSlots) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:  # a lone array is a TypeError
        raise DataError(f"{path}: cannot be read as .npz: {error}") from None
    missing = [slot.name for slot in slots.inputs if slot.name not in arrays and not slot.is_optional]
    if missing:
        raise DataError(f"{path}: there is no array for input '{missing[0]}'; there are {', '.join(arrays) or 'none'}")
    return arrays


def _rows(slot: TensorSlot, array: NDArray[Any], path: Path) -> int | None:
    """How many it has; None where it is one without a dimension for that."""
    if array.ndim == len(slot.dims) + 1:
        return len(array)
    if array.ndim == len(slot.dims):
        return None
    raise DataError(
        f"{path}: input '{slot.name}' expects the shape {list(slot.dims)}, with or without rows before, "
        f"got {list(array.shape)}"
    )


def _most_rows(arrays: Mapping[str, NDArray[Any]], count: int | None) -> int:
    row = sum(array.nbytes for array in arrays.values()) // max(count or 1, 1)
    return min(MAX_STEPS, max(1, MAX_BYTES // max(row, 1)))


def _file(folder: Path, name: str) -> Path:
    """Names of tensors are the model's, and are not to lead out of the folder."""
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise DataError(f"{folder}: '{name}' cannot be the name of a file")
    return folder / name


def _of_file(path: Path, slot: TensorSlot, shape: Sequence[int] | None) -> Tensor:
    try:
        if path.stat().st_size > MAX_TENSOR_BYTES:
            raise DataError(f"{path}: is larger than {MAX_TENSOR_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if slot.datatype is DataType.BYTES:
        data = encode_bytes_elements(data.removesuffix(b"\n").split(b"\n"))
    return raw(slot, shape, data, str(path))
