"""Samples: arrays and perf_analyzer's JSON become rows, and what does not fit is named."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trioton.convert.describing import described
from trioton.convert.samples import MOST_ROWS, random_rows, read_json, read_npz, rows_of_arrays, rows_of_json
from trioton.convert.tensors import Arrays, Description, TensorSpec
from trioton.flags.fields import UsageError

TEXTS = Description((TensorSpec("ids", "INT64", ("tokens",)), TensorSpec("mask", "INT64", ("tokens",))), True)
IMAGE = Description((TensorSpec("x", "FP32", (2, 2)),), True)


def test_rows_are_of_the_inputs_datatype(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(12, dtype=np.float64).reshape(3, 2, 2), more=np.zeros(3))
    rows = rows_of_arrays(read_npz(tmp_path / "x.npz"), IMAGE, "here")
    assert [row["x"].tolist() for row in rows][1] == [[4, 5], [6, 7]]
    assert rows[0].keys() == {"x"}
    assert rows[0]["x"].dtype == np.float32


def test_no_more_rows_than_prove_anything() -> None:
    assert len(rows_of_arrays({"x": np.zeros((MOST_ROWS + 9, 2, 2), np.float32)}, IMAGE, "here")) == MOST_ROWS


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": np.zeros((3, 2, 2), np.float32)}, "no array for input 'x'; there are y"),
        ({"x": np.zeros((3, 2, 3), np.float32)}, r"expects a shape of \[2, 2\] for each sample, got \[2, 3\]"),
        ({"x": np.zeros((3, 2, 2), np.complex64)}, "expects FP32, got numpy's complex64"),
    ],
)
def test_arrays_that_do_not_fit(arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rows_of_arrays(arrays, IMAGE, "here")


def test_sizes_of_one_name_are_equal() -> None:
    arrays = {"ids": np.zeros((2, 5), np.int64), "mask": np.zeros((2, 4), np.int64)}
    with pytest.raises(UsageError, match="the size 'tokens' is 5 in one input and 4 in 'mask'"):
        rows_of_arrays(arrays, TEXTS, "here")


@pytest.mark.parametrize("arrays", [{}, {"x": np.zeros(())}, {"x": np.zeros((2, 2)), "y": np.zeros((3, 2))}])
def test_an_npz_whose_first_dimension_does_not_count_samples(tmp_path: Path, arrays: dict[str, Any]) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(UsageError, match="must count the samples"):
        read_npz(tmp_path / "x.npz")


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UsageError, match="cannot be read"):
        read_npz(tmp_path / "x.npz")
    (tmp_path / "y.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(UsageError, match="cannot be read"):
        read_npz(tmp_path / "y.npz")


def written(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


def rows_of(path: Path) -> list[Arrays]:
    return rows_of_json(read_json(path), IMAGE, path)


def test_the_json_of_perf_analyzer(tmp_path: Path) -> None:
    floats = base64.b64encode(np.arange(4, dtype=np.float32).tobytes()).decode()
    data = [
        {"x": [1, 2, 3, 4]},
        [{"x": {"content": [5, 6, 7, 8], "shape": [2, 2]}}, {"x": {"b64": floats}}],  # a stream of two steps
    ]
    rows = rows_of(written(tmp_path / "data.json", {"data": data}))
    assert [row["x"].tolist() for row in rows] == [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[0, 1], [2, 3]]]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "is no input data"),
        ({"data": []}, "holds no data"),
        ({"data": [5]}, "entry 1: expected data by the names of inputs, got 5"),
        ({"data": [{"y": [1]}]}, "entry 1: there is no data for input 'x'"),
        ({"data": [{"x": [1, 2, 3]}]}, "entry 1, input 'x'"),
        ({"data": [{"x": {"content": [1, 2, 3, 4], "shape": [4]}}]}, r"expects a shape of \[2, 2\]"),
        ({"data": [{"x": ["a", "b", "c", "d"]}]}, "entry 1, input 'x'"),
    ],
)
def test_json_that_does_not_fit(tmp_path: Path, data: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rows_of(written(tmp_path / "data.json", data))


def test_random_rows_are_the_same_each_time_and_of_the_inputs() -> None:
    kinds = ("BOOL", "INT8", "UINT32", "FP16", "BYTES")
    description = Description(tuple(TensorSpec(kind, kind, (3, "some")) for kind in kinds), True)
    one, other = random_rows(description), random_rows(description)
    for spec in description.inputs:
        assert np.array_equal(one[3][spec.name], other[3][spec.name])
        assert one[3][spec.name].shape == (3, 12)
    assert not np.array_equal(one[0]["FP16"], one[1]["FP16"])


def test_inputs_are_described_by_flags_by_the_source_or_by_samples() -> None:
    names = [TensorSpec("x", "", ())]
    of_source = [TensorSpec("x", "FP32", ("batch", 4))]
    flag = TensorSpec("x", "FP16", (2,))
    samples = [{"x": np.zeros((9, 4, 6), np.float32)}, {"x": np.zeros((9, 5, 6), np.float32)}]
    assert described(names, [flag], samples, None) == (Description((flag,), True), 8)
    assert described(of_source, [], samples, 3) == (Description((TensorSpec("x", "FP32", (4,)),), True), 3)
    assert described(of_source, [], [], 0) == (Description((*of_source,), False), 0)
    found, largest = described(names, [], samples, None)
    assert (found.inputs, largest) == ((TensorSpec("x", "FP32", ("size_4_5", 6)),), 8)


@pytest.mark.parametrize(
    ("told", "given", "samples", "size", "words"),
    [
        ([TensorSpec("x", "", ())], [], [], None, r"does not tell .* of its inputs \(x\)"),
        ([TensorSpec("x", "", ())], [TensorSpec("y", "FP32", (2,))], [], None, "no input 'y'; it has x"),
        ([TensorSpec("x", "FP32", (3, 4))], [], [], 8, "first dimensions do not vary"),
        ([], [], [{"x": np.zeros((2, 3))}, {"x": np.zeros((2, 3, 4))}], None, "different numbers of dimensions"),
        ([], [], [{"x": np.zeros((2, 3), np.complex64)}], None, "no datatype of the protocol"),
    ],
)
def test_descriptions_that_contradict_themselves(
    told: list[TensorSpec], given: list[TensorSpec], samples: list[dict[str, Any]], size: int | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        described(told, given, samples, size)
