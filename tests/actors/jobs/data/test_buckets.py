"""Inputs in buckets are read a range at a time, and results written to them, in each kind of store."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest

from actors.jobs.data.places import READ_BYTES, files_of, parse_place, target_of
from actors.jobs.data.reader import InputReader
from actors.jobs.data.writer import OutputWriter
from protocol.errors import NotFound
from protocol.http.codec.job_rows import result_line
from protocol.jobs.rows import InputRow, ResultRow
from protocol.jobs.source import DataFormat, Position
from protocol.messages import InferenceResponse
from tests.emulators import Store

pytestmark = pytest.mark.slow


def rows(url: str, data_format: DataFormat, start: Position = Position()) -> list[InputRow]:  # noqa: B008 (frozen)
    return list(InputReader(files_of(parse_place(url), data_format, os.environ), data_format).rows(start))


def npz(count: int) -> bytes:
    target = io.BytesIO()
    np.savez(target, X=np.arange(count * 1024, dtype=np.float32).reshape(count, 1024))
    return target.getvalue()


def test_rows_of_objects(store: Store) -> None:
    store.put("in/a.jsonl", b"1\n2\n3\n")
    store.put("in/deep/b.jsonl", b"4\n")
    store.put("in/c.txt", b"5\n")
    store.put("in2/d.jsonl", b"6\n")

    def lines(pattern: str) -> list[object]:
        return [row.content.line for row in rows(f"{store.url}/{pattern}", DataFormat.JSON_LINES)]

    assert lines("in") == [b"1", b"2", b"3", b"4"]
    assert lines("in/c.txt") == [b"5"]
    assert lines("in*/*.jsonl") == [b"1", b"2", b"3", b"6"]
    assert lines("**/b.jsonl") == [b"4"]
    first = rows(f"{store.url}/in", DataFormat.JSON_LINES)[1].end
    assert [row.content.line for row in rows(f"{store.url}/in", DataFormat.JSON_LINES, first)] == [b"3", b"4"]
    with pytest.raises(NotFound, match="there is no such file, and none of format jsonl below it"):
        lines("none")


def test_an_object_of_several_ranges(store: Store) -> None:
    count = 3 * READ_BYTES // 4096
    store.put("in.npz", npz(count))
    found = rows(f"{store.url}/in.npz", DataFormat.NPZ)
    assert [int(row.content.values["X"][0]) for row in found if row.content.values] == [*range(0, count * 1024, 1024)]
    (last,) = rows(f"{store.url}/in.npz", DataFormat.NPZ, found[-2].end)
    assert last.index == count - 1


def test_results_are_objects(s3: Store) -> None:
    writer = OutputWriter(target_of(parse_place(f"{s3.url}/out/x"), os.environ), DataFormat.JSON_LINES, result_line)
    writer.open()
    writer.write([ResultRow(0, "", [InferenceResponse("m", 1, [])])])
    assert s3.keys("out") == ["out/x/results-000000000000.jsonl"]
