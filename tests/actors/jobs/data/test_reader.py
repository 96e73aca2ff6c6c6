"""The rows of real files, read whole and from any position on, and what is not of its format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.jobs.data.places import files_of, parse_place
from actors.jobs.data.reader import InputReader
from protocol.errors import InvalidArgument, NotFound
from protocol.jobs.rows import InputRow
from protocol.jobs.source import DataFormat, Position

JSON_LINES, PARQUET, NPZ, IMAGES = DataFormat


def reader(place: Path | str, data_format: DataFormat, max_row_bytes: int = 1 << 20) -> InputReader:
    return InputReader(files_of(parse_place(str(place)), data_format, {}), data_format, max_row_bytes=max_row_bytes)


def contents(rows: Sequence[InputRow]) -> list[Any]:
    return [
        row.content.error or (row.content.line if row.content.values is None else row.content.values) for row in rows
    ]


def comparable(found: list[Any]) -> list[Any]:
    return [
        {name: np.asarray(value).tolist() for name, value in row.items()} if isinstance(row, dict) else row
        for row in found
    ]


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path, **options)


@pytest.fixture(params=[JSON_LINES, PARQUET, NPZ, IMAGES])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, DataFormat]:
    """Three files with seven rows in all."""
    made: DataFormat = request.param
    for number, rows in enumerate((3, 1, 3)):
        name = tmp_path / f"{number}"
        numbers = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + 10 * number
        match made:
            case DataFormat.JSON_LINES:
                name.with_suffix(".jsonl").write_bytes(
                    b"".join(b"\n%b \r\n" % json.dumps({"X": each.tolist()}).encode() for each in numbers)
                )
            case DataFormat.PARQUET:
                write_parquet(name.with_suffix(".parquet"), {"X": list(numbers), "T": ["ä"] * rows}, row_group_size=2)
            case DataFormat.NPZ:
                np.savez_compressed(name.with_suffix(".npz"), X=numbers, T=np.array(["ä"] * rows))
            case DataFormat.IMAGES:
                for row in range(rows):
                    Path(f"{name}{row}.png").write_bytes(numbers[row].tobytes())
    return tmp_path, made


def test_rows_are_read_from_any_position_on(folder: tuple[Path, DataFormat]) -> None:
    place, data_format = folder
    read = reader(place, data_format)
    rows = list(read.rows())
    assert [row.index for row in rows] == [*range(7)]
    assert [row.end.row for row in rows] == [*range(1, 8)]
    whole = comparable(contents(rows))
    for row in rows:
        later = list(reader(place, data_format).rows(row.end))
        assert comparable(contents(later)) == whole[row.index + 1 :]
        assert [each.index for each in later] == [*range(row.index + 1, 7)]


def test_the_last_line_needs_no_newline(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"X": 1}\n\n{"X": 2}')
    assert contents(list(reader(tmp_path / "in.jsonl", JSON_LINES).rows())) == [b'{"X": 1}', b'{"X": 2}']


def test_a_line_that_is_too_long_is_a_row_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"a" * 100 + b"\n" + b"b" * 101 + b"\n" + b"c" * 3_000 + b"\nd\n")
    rows = list(reader(tmp_path, JSON_LINES, max_row_bytes=100).rows())
    too_long = "the line has more than 100 bytes"
    assert contents(rows) == [b"a" * 100, too_long, too_long, b"d"]
    assert contents(list(reader(tmp_path, JSON_LINES, 100).rows(rows[1].end))) == [too_long, b"d"]


@pytest.mark.parametrize("data_format", [PARQUET, NPZ])
@pytest.mark.parametrize("content", [b"", b"PAR1 no such thing PAR1", b"PK\x03\x04 cut off"])
def test_a_file_that_is_none_is_a_row_that_has_failed(tmp_path: Path, data_format: DataFormat, content: bytes) -> None:
    if data_format is PARQUET:
        pytest.importorskip("pyarrow")
    (tmp_path / "a").with_suffix(data_format.suffixes[0]).write_bytes(content)
    (tmp_path / "b").with_suffix(data_format.suffixes[0]).write_bytes(content)
    rows = list(reader(tmp_path, data_format).rows())
    assert [row.content.error[:8] for row in rows] == ["file 'a.", "file 'b."]
    assert len(list(reader(tmp_path, data_format).rows(rows[0].end))) == 1


def test_a_file_that_is_cut_off_gives_the_rows_before(tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", X=np.zeros((100_000, 20)))
    content = bytearray((tmp_path / "whole.npz").read_bytes())
    content[-200_000:-100_000] = b"x" * 100_000  # the checksum is looked at where the array ends
    (tmp_path / "whole.npz").write_bytes(content)
    rows = list(reader(tmp_path, NPZ).rows())
    assert 50_000 < len(rows) < 100_001
    assert rows[-1].content.error.startswith("file 'whole.npz': no NPZ file: ")


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ({"X": np.zeros(3), "Y": np.zeros(2)}, "same number of rows"),
        ({"X": np.array(1.0)}, "got a single number"),
        ({"X": np.array([None])}, "elements of a plain type, got object"),
        ({"X": np.asfortranarray(np.zeros((3, 2)))}, "in Fortran order"),
        ({"X": np.zeros((1, 1 << 18))}, "a row has 2097152 bytes, expected at most 1048576"),
    ],
)
def test_arrays_that_are_no_rows(tmp_path: Path, arrays: dict[str, Any], error: str) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    (row,) = reader(tmp_path, NPZ).rows()
    assert error in row.content.error


def test_values_of_columns(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "number": [1, 2],
        "text": ["ä", None],
        "bytes": [b"\xff", b""],
        "list": [[1.5, 2.5], []],
        "nested": [[[1, 2], [3, 4]], [[5, 6]]],
        "holes": [[1, None], None],
    }
    write_parquet(tmp_path / "in.parquet", columns)
    first, second = comparable(contents(list(reader(tmp_path, PARQUET).rows())))
    assert first == {name: values[0] for name, values in columns.items()}
    assert second == {"number": 2, "bytes": b"", "list": [], "nested": [[5, 6]]}


def test_a_file_that_has_changed_or_gone_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}\n{}\n")
    end = next(reader(path, JSON_LINES).rows()).end
    path.write_bytes(b"{}\n{}\n{}\n")
    with pytest.raises(InvalidArgument, match=r"'in\.jsonl' has changed"):
        next(reader(path, JSON_LINES).rows(end))
    path.rename(tmp_path / "other.jsonl")
    with pytest.raises(NotFound, match="has gone"):
        next(reader(tmp_path, JSON_LINES).rows(end))


def test_files_of_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/x.jsonl", "a/y.txt", "a/.hidden.jsonl", "_tmp/z.jsonl", "a/deep/x.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")

    def names(pattern: str) -> list[str]:
        return [file.name for file in files_of(parse_place(f"{tmp_path}/{pattern}"), JSON_LINES, {})]

    assert names("") == ["a/deep/x.jsonl", "a/x.jsonl", "b.jsonl"]
    assert names("a/y.txt") == ["y.txt"]
    assert names("a/*.txt") == ["y.txt"]
    assert names("*/x.jsonl") == ["a/x.jsonl"]
    assert names("**/x.jsonl") == ["a/deep/x.jsonl", "a/x.jsonl"]
    for none in ("none.jsonl", "none/*", "a/*.npz"):
        with pytest.raises(NotFound, match=r"none\.jsonl|none|npz"):
            names(none)


@pytest.mark.parametrize("url", ["", "file://host/x", "ftp://x/y", "s3://", "file://", "/a\0b", "s3://b/../c"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidArgument, match="url"):
        parse_place(url)


def test_positions_are_plain_values() -> None:
    assert Position() == Position(0, "", "", 0)


def test_patterns_are_matched_in_linear_time(tmp_path: Path) -> None:
    """This one takes a backtracking engine longer than anybody waits."""
    folder = tmp_path / "/".join("a" * 20)
    folder.mkdir(parents=True)
    (folder / ("a" * 200)).write_bytes(b"{}")
    with pytest.raises(NotFound):
        files_of(parse_place(f"{tmp_path}/{'**/' * 20}{'*a' * 20}b"), JSON_LINES, {})
    with pytest.raises(InvalidArgument, match="is too large"):
        files_of(parse_place(f"{tmp_path}/{'**/' * 100_000}"), JSON_LINES, {})


def test_rows_of_no_bytes_and_many_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", X=np.zeros((10_000, 0)))
    assert len(list(reader(tmp_path, NPZ).rows())) == 10_000
    np.savez(tmp_path / "in.npz", **{f"X{number}": np.zeros(1) for number in range(1001)})  # type: ignore[arg-type]
    (row,) = reader(tmp_path, NPZ).rows()
    assert "expected at most 1000 arrays, got 1001" in row.content.error


def test_large_rows_of_columns_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in.parquet", {"X": [np.full(200_000, number) for number in range(30)]})
    rows = reader(tmp_path, PARQUET, 2 << 20).rows()
    assert [int(row.content.values["X"][-1]) for row in rows if row.content.values] == [*range(30)]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    Path(f"{tmp_path}/\udcff.jsonl").write_bytes(b"{}")
    with pytest.raises(InvalidArgument, match=r"file '\\udcff.jsonl': expected a name in UTF-8"):
        files_of(tmp_path, JSON_LINES, {})
