"""Tables of results: the outputs of rows as columns of arrays, and NPZ files of them. Pure."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.jobs.rows import ResultRow
from protocol.messages import InferenceResponse, Tensor

INDEX, CUSTOM_ID = "index", "custom_id"

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
"""The outputs of one row."""


def arrays_of(response: InferenceResponse, *, is_batched: bool) -> Arrays:
    """The outputs of a row; with `is_batched` without a batch dimension of one. Texts are objects of bytes.

    Raises:
        InvalidArgument: a table cannot hold it.
    """
    for tensor in response.outputs:
        if tensor.name in (INDEX, CUSTOM_ID):
            raise InvalidArgument(f"output '{tensor.name}' has the name of a column of the table's own")
    return {tensor.name: _array(tensor, is_batched=is_batched) for tensor in response.outputs}


def check_npz(arrays: Arrays) -> None:
    """Raises InvalidArgument: a text ends in a zero byte, which numpy's arrays of texts do not keep."""
    for name, array in arrays.items():
        if array.dtype.hasobject and any(element.endswith(b"\0") for element in array.reshape(-1)):
            raise InvalidArgument(f"output '{name}': npz cannot hold a text that ends in a zero byte")


def _array(tensor: Tensor, *, is_batched: bool) -> NDArray[Any]:
    array = tensor.as_numpy()
    if tensor.datatype is DataType.BF16:  # which is no type of the files
        array = array.astype(np.float32)
    return array[0] if is_batched and array.ndim and len(array) == 1 else array


def likeness(arrays: Arrays, *, by_shape: bool) -> tuple[object, ...]:
    """Rows of which this is the same fit into one table; `by_shape` where all arrays of a column have the same."""
    return tuple((name, array.dtype, array.shape if by_shape else array.ndim) for name, array in sorted(arrays.items()))


def columns_of(rows: Sequence[ResultRow], outputs: Sequence[Arrays]) -> dict[str, list[NDArray[Any]]]:
    """Columns of rows that are alike: of their numbers, their own names, and of each output."""
    columns: dict[str, list[NDArray[Any]]] = {
        INDEX: [np.array(row.index, np.int64) for row in rows],
        CUSTOM_ID: [np.array(row.custom_id.encode("utf-8", "replace"), np.object_) for row in rows],
    }
    columns.update({name: [arrays[name] for arrays in outputs] for name in outputs[0]})
    return columns


def npz(columns: Mapping[str, Sequence[NDArray[Any]]]) -> bytes:
    """A whole file: an array for each column, with the rows along its first axis."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:  # numpy's own takes no column of any name
        for name, arrays in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy.write_array(file, _stacked(arrays), allow_pickle=False)
    return target.getvalue()


def _stacked(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    stacked = np.stack(arrays)
    if not stacked.dtype.hasobject:
        return stacked
    elements: list[bytes] = stacked.reshape(-1).tolist()
    try:
        texts = np.array([element.decode() for element in elements], np.str_)
    except UnicodeDecodeError:
        texts = np.array(elements, np.bytes_)
    return texts.reshape(stacked.shape)
