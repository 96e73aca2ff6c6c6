"""Samples: rows of real inputs from `.npz` and perf_analyzer's JSON, or random ones."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from trioton.convert.tensors import Array, Arrays, Description, TensorSpec
from trioton.flags.fields import UsageError

# More than these prove little more, and each is computed in float64.
MOST_ROWS = 256
_RANDOM_ROWS = 16
_RANDOM_SIZE = 12
_SEED = 0
# Below this all embeddings have entries.
_LARGEST_RANDOM_INTEGER = 9


def read_npz(path: Path) -> Arrays:
    """Arrays by the names of inputs; their first dimension counts the samples.

    Raises:
        UsageError: it cannot be read, or the arrays have different numbers of samples.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise UsageError(f"--samples: '{path}' cannot be read as .npz: {error}") from None
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not counts or min(counts.values()) < 1 or len(set(counts.values())) > 1:
        shown = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise UsageError(
            f"--samples: in '{path}' the first dimension of each array must count the samples, got {shown or 'nothing'}"
        )
    return arrays


def rows_of_arrays(arrays: Mapping[str, Array], description: Description, place: str) -> list[Arrays]:
    """Raises UsageError: they do not fit the inputs."""
    missing = [spec.name for spec in description.inputs if spec.name not in arrays]
    if missing:
        raise UsageError(f"{place}: there is no array for input '{missing[0]}'; there are {', '.join(arrays)}")
    count = len(arrays[description.inputs[0].name])
    rows = [
        {spec.name: _fitting(arrays[spec.name][index], spec, place) for spec in description.inputs}
        for index in range(min(count, MOST_ROWS))
    ]
    for row in rows:
        _check_equal_sizes(row, description, place)
    return rows


def read_json(path: Path) -> list[Mapping[str, Any]]:
    """The rows of the JSON that perf_analyzer takes as `--input-data`, each the data of inputs by their names.

    Raises:
        UsageError: it cannot be read, or holds none.
    """
    try:
        entries = list(_flattened(json.loads(path.read_text(encoding="utf-8"))["data"]))[:MOST_ROWS]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--samples: '{path}' is no input data of perf_analyzer: {error!r}") from None
    if not entries:
        raise UsageError(f"--samples: '{path}' holds no data")
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise UsageError(
                f"--samples: '{path}', entry {number}: expected data by the names of inputs, got {entry!r:.40}"
            )
    return entries


def rows_of_json(entries: Sequence[Mapping[str, Any]], description: Description, path: Path) -> list[Arrays]:
    """Raises UsageError: they do not fit the inputs."""
    rows = []
    for number, entry in enumerate(entries, start=1):
        place = f"--samples: '{path}', entry {number}"
        row = {}
        for spec in description.inputs:
            if spec.name not in entry:
                raise UsageError(f"{place}: there is no data for input '{spec.name}'")
            row[spec.name] = _fitting(_of_json(entry[spec.name], spec, place), spec, place)
        _check_equal_sizes(row, description, place)
        rows.append(row)
    return rows


def random_rows(description: Description) -> list[Arrays]:
    """Normal numbers, small integers: good enough to compare two programs, and no more than that."""
    generator = np.random.default_rng(_SEED)
    count = _RANDOM_ROWS if description.is_batching else 4
    return [{spec.name: _random(generator, spec) for spec in description.inputs} for _ in range(count)]


def _random(generator: np.random.Generator, spec: TensorSpec) -> Array:
    shape = tuple(dim if isinstance(dim, int) else _RANDOM_SIZE for dim in spec.dims)
    datatype = BY_PROTOCOL_NAME[spec.datatype]
    if datatype is DataType.BYTES:
        return generator.choice(np.array(["one", "two", "three"]), shape)
    if spec.name.endswith("mask"):
        return np.ones(shape, datatype.dtype)  # of transformers: what is hidden at random may be everything
    if datatype is DataType.BOOL:
        return generator.random(shape) < 0.5
    if datatype.dtype.kind in "iu":
        return generator.integers(0, _LARGEST_RANDOM_INTEGER, shape, endpoint=True).astype(datatype.dtype)
    return generator.standard_normal(shape).astype(datatype.dtype)


def _flattened(entries: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """A list of steps within is a stream; each step is a row here."""
    for entry in entries:
        yield from entry if isinstance(entry, list) else [entry]


def _of_json(value: Any, spec: TensorSpec, place: str) -> Array:
    shape: Sequence[int] | None = None
    if isinstance(value, dict):
        shape = value.get("shape")
        value = value.get("content", value)
    datatype = BY_PROTOCOL_NAME[spec.datatype]
    try:
        if isinstance(value, dict):
            array: Array = np.frombuffer(base64.b64decode(value["b64"]), datatype.dtype)
        else:
            array = np.array(value, dtype=np.str_ if datatype is DataType.BYTES else datatype.dtype)
        if shape is not None:
            return array.reshape(tuple(shape))
        return array.reshape(spec.shape) if -1 not in spec.shape or spec.shape.count(-1) == 1 else array
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(f"{place}, input '{spec.name}': {error}") from None


def _fitting(array: Array, spec: TensorSpec, place: str) -> Array:
    wanted = BY_PROTOCOL_NAME[spec.datatype].dtype
    fits = len(array.shape) == len(spec.dims) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(spec.dims, array.shape, strict=True)
    )
    if not fits:
        raise UsageError(
            f"{place}: input '{spec.name}' expects a shape of {list(spec.dims)} for each sample, "
            f"got {list(array.shape)}"
        )
    if spec.datatype == "BYTES":
        return array.astype(np.str_)
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise UsageError(f"{place}: input '{spec.name}' expects {spec.datatype}, got numpy's {array.dtype}")
    return np.ascontiguousarray(array.astype(wanted))


def _check_equal_sizes(row: Arrays, description: Description, place: str) -> None:
    sizes: dict[str, int] = {}
    for spec in description.inputs:
        for dim, size in zip(spec.dims, row[spec.name].shape, strict=True):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                raise UsageError(f"{place}: the size '{dim}' is {sizes[dim]} in one input and {size} in '{spec.name}'")
