"""Captured calls as Parquet: a row each, with a column for the elements of each tensor. Blocks; run in a thread."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from protocol.errors import Unsupported

_TEXTS = ("model", "version", "request_id", "trace_id", "key", "outcome")


def require_pyarrow() -> None:
    """Raises Unsupported: the library is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise Unsupported(
            f"capture as Parquet needs the package pyarrow: pip install 'trioton[capture]' ({error})"
        ) from None


def parquet_file(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A whole file of what `CallEncoder.described` gives. `request` and `responses` are JSON; `input.<name>` and
    `output.<name>` are the elements of tensors (of the first response), without those that are not whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {
        "time": pa.array([row["time"] for row in rows]).cast(pa.timestamp("us", tz="UTC")),
        **{name: pa.array([row[name] for row in rows], pa.string()) for name in _TEXTS},
        "duration_us": pa.array([row["duration_us"] for row in rows], pa.int64()),
        "error": pa.array([row.get("error", {}).get("message") for row in rows], pa.string()),
    }
    for prefix, tensors in (("input", [_inputs(row) for row in rows]), ("output", [_outputs(row) for row in rows])):
        for name in dict.fromkeys(name for found in tensors for name in found):
            columns[f"{prefix}.{name}"] = _column([found.get(name) for found in tensors])
    for name in ("request", "responses"):
        columns[name] = pa.array([msgspec.json.encode(row[name]).decode() for row in rows], pa.string())
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target)
    return target.getvalue()


def _inputs(row: Mapping[str, Any]) -> dict[str, Any]:
    return _whole(row["request"]["inputs"])


def _outputs(row: Mapping[str, Any]) -> dict[str, Any]:
    return _whole(row["responses"][0]["outputs"]) if row["responses"] else {}


def _whole(tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {tensor["name"]: tensor["data"] for tensor in tensors if "data" in tensor and "is_cut" not in tensor}


def _column(values: list[Any]) -> Any:
    """Of one type, if that is possible; else each as JSON."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except pa.ArrowException:
        return pa.array([None if value is None else msgspec.json.encode(value).decode() for value in values])
