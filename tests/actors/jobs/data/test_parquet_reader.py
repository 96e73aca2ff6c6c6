"""Parquet files that decode to far more than they have, or end their decoder: each costs its rows, and no memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.jobs.data import parquet_reader
from actors.jobs.data.parquet_reader import MOST_LARGE_ROWS, ParquetProcesses, ParquetReader
from actors.jobs.data.places import files_of, parse_place
from actors.jobs.data.reader import InputReader
from protocol.errors import Overloaded
from protocol.jobs.rows import FileRow, InputRow
from protocol.jobs.source import DataFormat

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.slow

MOST = 1 << 20


def rows(place: Path) -> list[InputRow]:
    read = InputReader(
        files_of(parse_place(str(place)), DataFormat.PARQUET, {}), DataFormat.PARQUET, max_row_bytes=MOST
    )
    return list(read.rows())


def errors(found: Sequence[InputRow]) -> list[str]:
    return [row.content.error for row in found]


def write(path: Path, column: Any, **options: Any) -> None:
    pq.write_table(pa.table({"X": column}), path, compression="zstd", store_schema=False, **options)


def repeated(text: str, count: int) -> Any:
    """Which a file has once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def zeros(*lengths: int) -> Any:
    ends = pa.array([0, *np.cumsum(lengths)], pa.int32())
    return pa.ListArray.from_arrays(ends, pa.array(np.zeros(sum(lengths), np.int64)))


def test_a_text_that_repeats_is_read_a_few_rows_at_a_time(tmp_path: Path) -> None:
    """300 MB, of some hundred bytes."""
    write(tmp_path / "in.parquet", repeated("x" * (MOST - 100), 300))
    assert (tmp_path / "in.parquet").stat().st_size < 2000
    found = rows(tmp_path)
    assert len(found) == 300
    assert {len(row.content.values["X"]) for row in found if row.content.values} == {MOST - 100}


@pytest.mark.parametrize("column", [zeros(2, 1 << 20, 3), pa.array(["a", "x" * (2 * MOST), "b"])])
def test_a_row_that_is_too_large_is_an_error_of_its_own(tmp_path: Path, column: Any) -> None:
    write(tmp_path / "in.parquet", column)
    found = rows(tmp_path)
    assert [bool(error) for error in errors(found)] == [False, True, False]
    assert f"bytes, expected at most {MOST}" in found[1].content.error
    assert [row.end.offset for row in found] == [1, 2, 3]


def test_values_that_have_no_bytes_count_as_what_they_become(tmp_path: Path) -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1 << 20], pa.int32()), pa.nulls(1 << 20))
    write(tmp_path / "in.parquet", lists)
    assert [bool(error) for error in errors(rows(tmp_path))] == [False, True]


def test_a_file_of_rows_that_are_too_large_is_given_up(tmp_path: Path) -> None:
    write(tmp_path / "in.parquet", repeated("x" * (2 * MOST), 10 * MOST_LARGE_ROWS))
    found = errors(rows(tmp_path))
    assert len(found) == MOST_LARGE_ROWS + 1
    assert found[-1] == f"file 'in.parquet': {MOST_LARGE_ROWS} rows have more than {MOST} bytes"


def test_a_row_that_cannot_be_decoded_ends_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has 400 MB, and the process 100."""
    monkeypatch.setattr(parquet_reader, "MEMORY_BYTES", 100 << 20)
    write(tmp_path / "a.parquet", zeros(2, 3, 50_000_000, 4))
    write(tmp_path / "b.parquet", zeros(5))
    found = rows(tmp_path)
    memory = (100 << 20) + 4 * MOST
    told = f"file 'a.parquet': row 2 cannot be decoded with {memory} bytes of memory"
    assert errors(found) == ["", "", told, ""]
    assert (tmp_path / "a.parquet").stat().st_size < 10_000


def test_a_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "in.parquet", pa.array(np.arange(1000)))
    found: list[FileRow] = []
    with ParquetReader(ParquetProcesses(1)) as reader, (tmp_path / "in.parquet").open("rb") as file:
        for row in reader.read(file, 0, MOST):
            found.append(row)
            if len(found) == 10:
                assert reader._child is not None
                os.kill(reader._child._process.pid, signal.SIGKILL)
    assert [row.values["X"] for row in found if row.values] == [*range(1000)]


def test_one_process_reads_many_files_and_goes_with_its_reader(tmp_path: Path) -> None:
    processes = ParquetProcesses(1)
    write(tmp_path / "in.parquet", pa.array([1, 2]))
    with ParquetReader(processes) as reader:
        children = set()
        for _ in range(3):
            with (tmp_path / "in.parquet").open("rb") as file:
                assert len(list(reader.read(file, 0, MOST))) == 2
                children.add(reader._child)
        assert len(children) == 1
        with (
            ParquetReader(processes) as other,
            (tmp_path / "in.parquet").open("rb") as file,
            pytest.raises(Overloaded, match="1 inputs in Parquet are read already"),
        ):
            next(other.read(file, 0, MOST))
    with ParquetReader(processes) as other, (tmp_path / "in.parquet").open("rb") as file:
        assert next(other.read(file, 1, MOST)).values == {"X": 2}


def test_a_failure_to_read_is_the_files_own(tmp_path: Path) -> None:
    class Broken:
        def seek(self, offset: int, whence: int = 0) -> int:
            return 1000

        def read(self, size: int) -> bytes:
            raise OSError(5, "input/output error")

    with ParquetReader(ParquetProcesses(1)) as reader, pytest.raises(OSError, match="input/output error"):
        next(reader.read(Broken(), 0, MOST))  # type: ignore[arg-type]
