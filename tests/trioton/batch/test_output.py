"""Results in a file that is gone on with, and in folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.jobs.job import ItemError
from protocol.jobs.rows import ResultRow
from protocol.jobs.source import DataFormat, Position
from protocol.messages import InferenceResponse, Tensor
from repository.stores.urls import parse_store_url
from trioton.batch.input import Shard
from trioton.batch.output import LinesOutput, parts_from
from trioton.batch.places import OutputPlace, output_place
from trioton.batch.state import Ends, Identity, State, UnusableState

STATE = State(Identity("", "", "", "", -1, "", None))


def row(index: int, value: object = 1.0) -> ResultRow:
    return ResultRow(index, "", [InferenceResponse("m", 1, [Tensor.from_numpy("Y", np.array([value]))])])


def failed(index: int) -> ResultRow:
    return ResultRow(index, "", error=ItemError("INVALID_ARG", "no"))


def opened(folder: Path, ends: Ends = Ends()) -> LinesOutput:  # noqa: B008 (frozen)
    output = LinesOutput(folder / "out.jsonl", folder / "out.jsonl.errors.jsonl")
    output.open(ends)
    return output


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    output = opened(tmp_path)
    output.write([row(0), failed(1), row(2)])
    ends = output.checkpoint()
    output.write([row(3), failed(4)])
    output.close()
    whole = (tmp_path / "out.jsonl").read_bytes()
    assert whole.count(b"\n") == 3
    output = opened(tmp_path, ends)
    output.write([row(3)])
    output.checkpoint()
    output.close()
    assert (tmp_path / "out.jsonl").read_bytes() == whole
    assert (tmp_path / "out.jsonl.errors.jsonl").read_bytes().count(b"\n") == 1


def test_errors_before_the_first_checkpoint_go(tmp_path: Path) -> None:
    output = opened(tmp_path)
    output.write([failed(0)])
    output.close()
    opened(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl"]


def test_results_that_lines_cannot_hold_are_failures(tmp_path: Path) -> None:
    output = opened(tmp_path)
    output.write([row(0), row(1, b"\xff")])
    output.checkpoint()
    output.close()
    assert output.failures == 1
    assert b'"index":1' in (tmp_path / "out.jsonl.errors.jsonl").read_bytes()


def test_an_output_that_was_cut_is_told(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("{}\n")
    with pytest.raises(UnusableState, match="has 3 bytes, and should have 100 at least"):
        opened(tmp_path, Ends(100))


def test_a_folder_s_files_are_whole_at_checkpoints(tmp_path: Path) -> None:
    place = output_place(tmp_path / "out", DataFormat.NPZ, Shard())
    with place.results(STATE, {}, is_batched=False) as output:
        output.write([row(0), failed(1)])
        assert parts_from(tmp_path / "out", 0) == []
        output.checkpoint()
        output.write([row(2), row(3)])
        output.checkpoint()
    assert [path.name for path in parts_from(tmp_path / "out", 0)] == [
        "errors-000000000000.jsonl",
        "results-000000000000.npz",
        "results-000000000002.npz",
    ]
    assert output.failures == 1


def test_a_folder_counts_what_its_format_cannot_hold(tmp_path: Path) -> None:
    place = output_place(tmp_path / "out", DataFormat.NPZ, Shard())
    with place.results(STATE, {}, is_batched=False) as output:
        output.write([row(0), ResultRow(1, "")])  # a decoupled model gave no response
        assert output.failures == 0
        output.checkpoint()
        assert output.failures == 1


def test_what_no_state_tells_of_is_removed_from_a_folder(tmp_path: Path) -> None:
    for name in ("results-000000000000.jsonl", "results-000000000010.jsonl", "errors-000000000012.jsonl", "notes.txt"):
        (tmp_path / name).write_text("")
    place = output_place(tmp_path, DataFormat.JSON_LINES, Shard())
    with place.results(State(STATE.identity, Position(10)), {}, is_batched=False):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "results-000000000000.jsonl"]
    with pytest.raises(UnusableState, match="is there already"):
        place.check_empty()
    with place.results(STATE, {}, is_batched=False):
        pass
    place.check_empty()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("text", "data_format", "shard", "expected", "is_file"),
    [
        ("out.jsonl", DataFormat.JSON_LINES, Shard(), "out.jsonl", True),
        ("out.jsonl", DataFormat.JSON_LINES, Shard(2, 4), "out-00002-of-00004.jsonl", True),
        ("out.parquet", DataFormat.PARQUET, Shard(), "out.parquet", False),
        ("out", DataFormat.JSON_LINES, Shard(2, 4), "out/00002-of-00004", False),
        ("s3://bucket/out.jsonl", DataFormat.JSON_LINES, Shard(), "s3://bucket/out.jsonl", False),
        ("s3://bucket/out", DataFormat.JSON_LINES, Shard(1, 2), "s3://bucket/out/00001-of-00002", False),
    ],
)
def test_places(text: str, data_format: DataFormat, shard: Shard, expected: str, is_file: bool) -> None:
    place = parse_store_url(text) if "://" in text else Path(text)
    found = output_place(place, data_format, shard)
    assert (str(found.place), found.is_file) == (expected, is_file)


def test_where_failures_are() -> None:
    assert OutputPlace(Path("o.jsonl"), DataFormat.JSON_LINES, is_file=True).errors == "o.jsonl.errors.jsonl"
    assert OutputPlace(Path("o"), DataFormat.NPZ, is_file=False).errors == "o/errors-*.jsonl"
