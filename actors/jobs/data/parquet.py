"""Parquet: results as whole files. Blocks. `parquet_reader` reads them."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Unsupported


def require_pyarrow() -> None:
    """Raises Unsupported: the library is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise Unsupported(f"Parquet needs the package pyarrow: pip install 'trioton[parquet]' ({error})") from None


def write_parquet(columns: Mapping[str, Sequence[NDArray[Any]]]) -> bytes:
    """A whole file: each column is the arrays of its rows, all of one type and number of dimensions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = io.BytesIO()
    pq.write_table(pa.table({name: _column(arrays) for name, arrays in columns.items()}), target)
    return target.getvalue()


def _column(arrays: Sequence[NDArray[Any]]) -> Any:
    """As lists in lists, one for each dimension."""
    import pyarrow as pa

    flat = np.concatenate([array.reshape(-1) for array in arrays])
    column = _texts(flat.tolist()) if flat.dtype.hasobject else pa.array(flat)
    for axis in reversed(range(arrays[0].ndim)):
        lengths = [np.full(math.prod(array.shape[:axis]), array.shape[axis]) for array in arrays]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), column)
    return column


def _texts(elements: list[bytes]) -> Any:
    import pyarrow as pa

    try:
        return pa.array([element.decode() for element in elements], pa.string())
    except UnicodeDecodeError:
        return pa.array(elements, pa.binary())
