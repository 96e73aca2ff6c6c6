"""Parquet: rows of columns, read a batch at a time, and results written as whole files. Blocks."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Unsupported
from protocol.jobs.rows import FileRow, MalformedFile

# Of a batch: rows, and the bytes that they have on average. Their pages are read as they come.
_BATCH_ROWS = 256
_BATCH_BYTES = 4 << 20
_BUFFER_BYTES = 1 << 20


def require_pyarrow() -> None:
    """Raises Unsupported: the library is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise Unsupported(f"Parquet needs the package pyarrow: pip install 'trioton[parquet]' ({error})") from None


def read_parquet(file: BinaryIO, offset: int, max_row_bytes: int) -> Iterator[FileRow]:
    """The rows from a row on: numbers, texts, bytes, and lists of them.

    Raises:
        MalformedFile: the file is not what it should be.
        Unsupported: pyarrow is not installed.
    """
    require_pyarrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        group, start = _group_at(parquet.metadata, offset)
        groups = range(group, parquet.metadata.num_row_groups)
        size = min((_batch_rows(parquet.metadata.row_group(each)) for each in groups), default=1)
        for batch in parquet.iter_batches(size, row_groups=[*groups]) if groups else ():
            end = start + batch.num_rows
            if end > offset:
                rows = batch.slice(offset - start)
                for values in _rows(rows):
                    offset += 1
                    yield FileRow(offset, values=values)
            start = end
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk; the others are of the format
            raise
        raise MalformedFile(f"no Parquet file: {error}") from None


def _group_at(metadata: Any, row: int) -> tuple[int, int]:
    """The row group that holds a row, and the first row of that."""
    start = 0
    for group in range(metadata.num_row_groups):
        end = start + metadata.row_group(group).num_rows
        if row < end:
            return group, start
        start = end
    return metadata.num_row_groups, start


def _batch_rows(group: Any) -> int:
    """How many rows of a group to read at a time."""
    columns = [group.column(place) for place in range(group.num_columns)]
    size = sum(max(column.total_uncompressed_size, 8 * column.num_values) for column in columns)
    return max(1, min(_BATCH_ROWS, int(group.num_rows) * _BATCH_BYTES // max(int(size), 1)))


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Columns with no value in a row are left out of it."""
    columns = {name: _values(batch.column(place)) for place, name in enumerate(batch.schema.names)}
    for place in range(batch.num_rows):
        yield {name: values[place] for name, values in columns.items() if values[place] is not None}


def _values(column: Any) -> Sequence[Any]:
    """The values of a column: of lists of numbers, the usual case, without an object for each number."""
    import pyarrow as pa

    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not _is_number(kind.value_type) or column.null_count:
        return column.to_pylist()  # type: ignore[no-any-return]
    flat = column.flatten()
    if flat.null_count:
        return column.to_pylist()  # type: ignore[no-any-return]
    numbers = flat.to_numpy(zero_copy_only=False)
    ends = column.value_lengths().to_numpy(zero_copy_only=False).cumsum()
    return [numbers[start:end] for start, end in zip((0, *ends[:-1]), ends, strict=True)] if len(ends) else []


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


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
