"""Results in files: joined to their rows, errors apart, each file whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.jobs.data.writer import OutputWriter
from protocol.errors import InvalidArgument
from protocol.http.codec.job_rows import result_line
from protocol.jobs.job import ItemError
from protocol.jobs.rows import ResultRow
from protocol.jobs.source import DataFormat
from protocol.messages import InferenceResponse, Tensor
from repository.stores.targets import FolderTarget


def row(index: int, custom_id: str = "", /, **outputs: Any) -> ResultRow:
    tensors = [Tensor.from_numpy(name, np.asarray(value)) for name, value in outputs.items()]
    return ResultRow(index, custom_id, [InferenceResponse("m", 1, tensors)])


def failed(index: int) -> ResultRow:
    return ResultRow(index, f"c{index}", error=ItemError("INVALID_ARG", "no"))


def written(folder: Path, data_format: DataFormat, *parts: list[ResultRow]) -> list[str]:
    writer = OutputWriter(FolderTarget(folder), data_format, result_line, is_batched=True)
    writer.open()
    for part in parts:
        writer.write(part)
    return sorted(path.name for path in folder.iterdir())


def test_lines(tmp_path: Path) -> None:
    parts = [row(0, "a", Y=[[1.5]]), failed(1)], [failed(2)], [row(3, Y=[["ä"]])]
    assert written(tmp_path / "out", DataFormat.JSON_LINES, *parts) == [
        "errors-000000000000.jsonl",
        "errors-000000000002.jsonl",
        "results-000000000000.jsonl",
        "results-000000000003.jsonl",
    ]
    first = json.loads((tmp_path / "out/results-000000000000.jsonl").read_text())
    assert (first["index"], first["custom_id"]) == (0, "a")
    assert first["response"]["outputs"] == [{"name": "Y", "datatype": "FP64", "shape": [1, 1], "data": [1.5]}]
    error = json.loads((tmp_path / "out/errors-000000000000.jsonl").read_text())
    assert error == {"index": 1, "custom_id": "c1", "error": {"kind": "INVALID_ARG", "message": "no"}}


def test_parquet(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [
        row(0, "a", X=np.array([[1, 2]], np.float32), S=[[7]], T=[[b"\xff"]], N=[[[1, 2], [3, 4]]]),
        failed(1),
        row(2, X=np.array([[3]], np.float32), S=[[8]], T=[[b"x"]], N=[[[5], [6]]]),
    ]
    assert written(tmp_path, DataFormat.PARQUET, rows) == ["errors-000000000000.jsonl", "results-000000000000.parquet"]
    table = pq.read_table(tmp_path / "results-000000000000.parquet").to_pydict()
    assert table == {
        "index": [0, 2],
        "custom_id": ["a", ""],
        "X": [[1, 2], [3]],
        "S": [[7], [8]],
        "T": [[b"\xff"], [b"x"]],
        "N": [[[1, 2], [3, 4]], [[5], [6]]],
    }


def test_npz(tmp_path: Path) -> None:
    rows = [
        row(0, "a", file=np.array([[1, 2]], np.float16), T=[["ä"]]),
        row(1, "b", file=np.array([[3, 4]], np.float16), T=[["long"]]),
        row(2, "c", file=np.array([[3]], np.float16), T=[["x"]]),
        row(3, "d", file=np.array([[3]], np.float16), T=np.array([["x\0"]], np.object_)),
        row(4, "e", index=np.array([[3]], np.float16)),
    ]
    assert written(tmp_path, DataFormat.NPZ, rows) == [
        "errors-000000000000.jsonl",
        "results-000000000000.npz",
        "results-000000000002.npz",
    ]
    with np.load(tmp_path / "results-000000000000.npz") as arrays:
        assert {name: array.tolist() for name, array in arrays.items()} == {
            "index": [0, 1],
            "custom_id": ["a", "b"],
            "file": [[1, 2], [3, 4]],
            "T": [["ä"], ["long"]],
        }
    errors = [json.loads(line) for line in (tmp_path / "errors-000000000000.jsonl").read_text().splitlines()]
    assert [error["index"] for error in errors] == [3, 4]
    assert "'T': npz cannot hold a text that ends in a zero byte" in errors[0]["error"]["message"]
    assert "output 'index' has the name of a column" in errors[1]["error"]["message"]


def test_several_responses_are_lines_only(tmp_path: Path) -> None:
    responses = [*row(0, Y=[[1]]).responses, *row(0, Y=[[2]]).responses]
    several = [ResultRow(0, "", responses)]
    assert written(tmp_path / "n", DataFormat.NPZ, several) == ["errors-000000000000.jsonl"]
    assert written(tmp_path / "l", DataFormat.JSON_LINES, several) == ["results-000000000000.jsonl"]
    line = json.loads((tmp_path / "l/results-000000000000.jsonl").read_text())
    assert [each["outputs"][0]["data"] for each in line["responses"]] == [[1], [2]]


def test_what_is_written_again_takes_the_place_of_what_was(tmp_path: Path) -> None:
    for rows in ([row(0, Y=[[1]])], [row(0, Y=[[1]]), row(1, Y=[[2]])]):
        assert written(tmp_path, DataFormat.JSON_LINES, rows) == ["results-000000000000.jsonl"]
    assert len((tmp_path / "results-000000000000.jsonl").read_text().splitlines()) == 2


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="cannot be written"):
        written(tmp_path / "file", DataFormat.NPZ, [row(0, Y=[[1]])])
