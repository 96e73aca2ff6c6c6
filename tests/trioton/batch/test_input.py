"""Rows of an input: those of a shard, of the first ones, from a position on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.jobs.data.places import files_of
from protocol.errors import InvalidArgument
from protocol.http.codec.job_rows import RowDecoder
from protocol.jobs.model_inputs import ModelInputs
from protocol.jobs.source import DataFormat, Position
from protocol.messages import InferenceRequest
from trioton.batch.attempts import RequestRow
from trioton.batch.input import Input, Shard

DECODER = RowDecoder(ModelInputs("m", [("X", "INT64", (-1, 1))], is_batched=True), -1, 1 << 20)


def input_of(place: Path, data_format: DataFormat = DataFormat.JSON_LINES, **more: object) -> Input:
    decoder = more.pop("decoder", DECODER)
    return Input(files_of(place, data_format, {}), data_format, decoder, **more)  # type: ignore[arg-type]


def read_all(rows: Input) -> list[RequestRow]:
    found: list[RequestRow] = []
    while some := rows.read():
        found += some
    rows.close()
    return found


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    rows = [{"X": [index], "custom_id": f"c{index}"} for index in range(1000)]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_all_rows_in_order_with_their_names(lines: Path) -> None:
    rows = input_of(lines)
    found = read_all(rows)
    assert [(row.index, row.custom_id) for row in found] == [(index, f"c{index}") for index in range(1000)]
    assert all(isinstance(row.request, InferenceRequest) for row in found)
    assert rows.fraction() == 1.0


def test_shards_have_each_row_once(lines: Path) -> None:
    found = [row.index for number in (1, 2, 3) for row in read_all(input_of(lines, shard=Shard(number, 3)))]
    assert sorted(found) == list(range(1000))
    assert [row.index for row in read_all(input_of(lines, shard=Shard(2, 3), limit=8))] == [1, 4, 7]


def test_it_goes_on_behind_any_row(lines: Path) -> None:
    whole = read_all(input_of(lines, shard=Shard(1, 2)))
    for at in (0, 3, 499):
        rest = read_all(input_of(lines, shard=Shard(1, 2), start=whole[at].end))
        assert [row.index for row in rest] == [row.index for row in whole[at + 1 :]]


def test_an_input_that_has_changed_is_not_gone_on_with(lines: Path) -> None:
    end = read_all(input_of(lines, limit=10))[-1].end
    lines.write_text("{}\n")
    with pytest.raises(InvalidArgument, match="has changed since"):
        input_of(lines, start=end).read()


def test_how_much_was_read(lines: Path) -> None:
    rows = input_of(lines)
    assert rows.fraction() == 0.0
    first = rows.read()
    assert 0 < len(first) < 1000
    assert rows.fraction() == pytest.approx(len(first) / 1000, abs=0.02)
    rows.close()
    limited = input_of(lines, limit=512)
    assert limited.fraction() == 0.0
    assert limited.fraction() < len(limited.read()) / 512 + 0.01
    assert limited.fraction() >= 0.5
    limited.close()


def test_what_is_no_request_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"X": [1]}\nno\n\n{"Y": 3}\n{"X": [2]}\n')
    found = read_all(input_of(path))
    assert [row.index for row in found] == [0, 1, 2, 3]
    assert [isinstance(row.request, InferenceRequest) for row in found] == [True, False, False, True]


def test_whole_files_are_named_by_their_files(tmp_path: Path) -> None:
    for name in ("b.png", "a.png", "deeper/c.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    decoder = RowDecoder(ModelInputs("m", [("IMAGE", "BYTES", (1,))], is_batched=False), -1, 1 << 20)
    found = read_all(input_of(tmp_path, DataFormat.IMAGES, decoder=decoder))
    assert [row.custom_id for row in found] == ["a.png", "b.png", "deeper/c.png"]
    assert found[1].end == Position(2, "b.png", found[1].end.stamp, found[1].end.offset)
