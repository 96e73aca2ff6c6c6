"""Data from `.npz` files, folders, captures and warm-up samples."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trioton.perf.data.models import described, slots
from trioton.perf.caller import DataError
from trioton.perf.data import array_files
from trioton.perf.data.array_files import read_folder, read_npz
from trioton.perf.data.captured import read_captured
from trioton.perf.data.sources import Sources, arrival_times
from trioton.perf.data.warmup import read_warmup

FLOATS = slots(("A", "FP32", [2]), batch=4)
TEXTS = slots(("A", "STRING", [2]))


def test_rows_of_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", A=np.arange(6, dtype=np.float32).reshape(3, 2))
    dataset = read_npz(tmp_path / "rows.npz", FLOATS)
    assert [step.tensors["A"].as_numpy().tolist() for step in dataset.steps] == [[0, 1], [2, 3], [4, 5]]


def test_one_row_of_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "row.npz", A=np.array(["x", "yz"]))
    (step,) = read_npz(tmp_path / "row.npz", TEXTS).steps
    assert step.tensors["A"].as_numpy().tolist() == [b"x", b"yz"]


def test_npz_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "MAX_BYTES", 20)
    np.savez(tmp_path / "rows.npz", A=np.zeros((100, 2), np.float32))
    dataset = read_npz(tmp_path / "rows.npz", FLOATS)
    assert len(list(dataset.steps)) == 2
    assert "of 100 rows the first 2 are used" in dataset.notes[0]


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"B": np.zeros((1, 2))}, "no array for input 'A'; there are B"),
        ({"A": np.zeros((1, 2)), "B": np.zeros(2)}, "no input 'B'"),
        ({"A": np.zeros((1, 3), np.float32)}, r"expects the shape \[2\], got \[3\]"),
        ({"A": np.zeros((1, 2), np.complex64)}, "expects FP32, got numpy's complex64"),
        ({"A": np.zeros((0, 2), np.float32)}, "there are no rows"),
        ({"A": np.zeros((1, 1, 2), np.float32)}, "with or without rows before"),
    ],
)
def test_npz_that_does_not_fit(tmp_path: Path, arrays: dict[str, Any], text: str) -> None:
    np.savez(tmp_path / "rows.npz", **arrays)
    with pytest.raises(DataError, match=text):
        read_npz(tmp_path / "rows.npz", FLOATS)


def test_what_is_no_npz(tmp_path: Path) -> None:
    (tmp_path / "rows.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match=r"cannot be read as \.npz"):
        read_npz(tmp_path / "rows.npz", FLOATS)


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "A").write_bytes(np.array([1, 2], "<f4").tobytes())
    (tmp_path / "OUT").write_bytes(np.array([3, 4], "<f4").tobytes())
    (step,) = read_folder(tmp_path, FLOATS, {}).steps
    assert step.tensors["A"].as_numpy().tolist() == [1, 2]
    assert step.expected["OUT"].as_numpy().tolist() == [3, 4]


def test_a_folder_of_texts(tmp_path: Path) -> None:
    (tmp_path / "A").write_text("first\nsecond\n")
    (step,) = read_folder(tmp_path, TEXTS, {}).steps
    assert step.tensors["A"].as_numpy().tolist() == [b"first", b"second"]


def test_a_folder_without_an_input(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file for input 'A'"):
        read_folder(tmp_path, FLOATS, {})


def test_a_name_leads_out_of_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be the name of a file"):
        read_folder(tmp_path, slots(("../A", "FP32", [1])), {})


def line(time: str, *inputs: dict[str, Any], outcome: str = "ok", **parameters: Any) -> str:
    request = {"inputs": list(inputs), "parameters": parameters}
    return json.dumps({"time": f"2026-11-24T14:07:{time}Z", "model": "m", "outcome": outcome, "request": request})


def entry(*values: float, **more: Any) -> dict[str, Any]:
    return {"name": "A", "datatype": "FP32", "shape": [len(values) // 2, 2], "data": values, **more}


def test_a_capture(tmp_path: Path) -> None:
    """In the order of time, with batches as they were."""
    (tmp_path / "2.jsonl").write_text(line("12.000000", entry(5, 6)) + "\n")
    first = line("11.000000", entry(1, 2, 3, 4), color="red")
    left = [line("11.100000", entry(0, 0), outcome="error"), line("11.200000", entry(0, 0, is_cut=True))]
    elsewhere = {"name": "A", "datatype": "FP32", "shape": [1, 2], "is_elsewhere": True}
    (tmp_path / "1.jsonl").write_text(
        "\n".join([line("11.500000", entry(7, 8)), first, *left, line("11.3", elsewhere)])
    )
    dataset = read_captured(tmp_path, FLOATS)
    steps = list(dataset.steps)
    assert [step.tensors["A"].as_numpy().tolist() for step in steps] == [[[1, 2], [3, 4]], [[7, 8]], [[5, 6]]]
    assert [step.rows for step in steps] == [2, 1, 1]
    assert steps[0].parameters == {"color": "red"}
    assert arrival_times(dataset) == pytest.approx([0, 0.5, 1])
    assert "3 requests are left out" in dataset.notes[0]


def test_captured_sequences_are_streams(tmp_path: Path) -> None:
    lines = [line(f"1{n}.000000", entry(n, n), sequence_id=5 + n % 2, sequence_start=n < 2) for n in range(5)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    dataset = read_captured(tmp_path / "c.jsonl", FLOATS)
    assert [len(stream) for stream in dataset.streams] == [3, 2]
    assert not any(step.parameters for step in dataset.steps)


def test_captured_bytes(tmp_path: Path) -> None:
    texts = [base64.b64encode(each).decode() for each in (b"\xff", b"a")]
    tensor = {"name": "A", "datatype": "BYTES", "shape": [2], "data_base64": texts}
    (tmp_path / "c.jsonl").write_text(line("10.000000", tensor))
    (step,) = read_captured(tmp_path / "c.jsonl", TEXTS).steps
    assert step.tensors["A"].as_numpy().tolist() == [b"\xff", b"a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no request to model 'm'"),
        ("{", "cannot be read as a capture"),
        ("[]", "expected an object with 'request'"),
        (line("10.0", {"name": "B", "datatype": "FP32", "shape": [1], "data": [1]}), "no input 'B'"),
        (line("10.0", entry(1, 2) | {"datatype": "FP64"}), "expects FP32, got FP64"),
        (line("x", entry(1, 2)), "expected a moment as 'time'"),
    ],
)
def test_captures_that_do_not_fit(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "c.jsonl").write_text(text)
    with pytest.raises(DataError, match=expected):
        read_captured(tmp_path / "c.jsonl", FLOATS)


def test_a_capture_in_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from actors.capture.parquet import parquet_file

    rows = [json.loads(line("11.000000", entry(1, 2)))]
    row = {**rows[0], "version": "1", "request_id": "", "trace_id": "", "key": "", "duration_us": 1, "responses": []}
    from datetime import datetime

    row["time"] = datetime.fromisoformat(row["time"])
    (tmp_path / "c.parquet").write_bytes(parquet_file([row]))
    (step,) = read_captured(tmp_path / "c.parquet", FLOATS).steps
    assert step.tensors["A"].as_numpy().tolist() == [[1, 2]]


WARMUP = {
    "name": "one",
    "batch_size": 1,
    "inputs": {"A": {"data_type": "TYPE_FP32", "dims": [2], "zero_data": True}},
}


def test_warmup_samples() -> None:
    model = described(("A", "FP32", [2]), batch=4, model_warmup=[WARMUP])
    (step,) = read_warmup(model, None).steps
    assert step.tensors["A"].shape == (1, 2)
    assert step.rows == 1


def test_warmup_samples_in_files(tmp_path: Path) -> None:
    sample = WARMUP | {"inputs": {"A": {"data_type": "TYPE_FP32", "dims": [2], "input_data_file": "a"}}}
    model = described(("A", "FP32", [2]), batch=4, model_warmup=[sample])
    with pytest.raises(DataError, match="--input-data warmup:<directory>"):
        read_warmup(model, None)
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "a").write_bytes(np.array([1, 2], "<f4").tobytes())
    (step,) = read_warmup(model, tmp_path).steps
    assert step.tensors["A"].as_numpy().tolist() == [[1, 2]]


def test_no_warmup_samples() -> None:
    with pytest.raises(DataError, match="no warm-up samples"):
        read_warmup(described(("A", "FP32", [2])), None)


@pytest.mark.parametrize("word", ["nothing.json", "rondom"])
def test_no_such_file(tmp_path: Path, word: str) -> None:
    with pytest.raises(DataError, match="there is no such file or folder"):
        Sources(words=(str(tmp_path / word),)).load(described(("A", "FP32", [2])))


def test_only_json_is_joined(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", A=np.zeros((1, 2), np.float32))
    with pytest.raises(DataError, match="only JSON files can be joined"):
        Sources(words=(str(tmp_path / "a.npz"), "zero")).load(described(("A", "FP32", [2])))


def test_entries_without_times() -> None:
    dataset = Sources().load(described(("A", "FP32", [2])))
    with pytest.raises(DataError, match="16 of 16 entries of the data have no time"):
        arrival_times(dataset)
