"""Inputs in buckets are read a range at a time, and results written to them, in each kind of store."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest

from actors.jobs.data.places import READ_BYTES, files_of, parse_place, target_of
from actors.jobs.data.reader import InputReader
from actors.jobs.data.writer import OutputWriter
from protocol.errors import NotFound, ServerError
from protocol.http.codec.job_rows import result_line
from protocol.jobs.rows import InputRow, ResultRow
from protocol.jobs.source import DataFormat, Position
from protocol.messages import InferenceResponse, Tensor
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


def test_results_are_objects(store: Store) -> None:
    """One that is small, and one that the client sends in several parts."""
    writer = OutputWriter(target_of(parse_place(f"{store.url}/out/x"), os.environ), DataFormat.NPZ, result_line)
    writer.open()
    large = np.arange(3 << 20, dtype=np.float32)
    for index, array in enumerate((large[:2], large)):
        writer.write([ResultRow(index, "", [InferenceResponse("m", 1, [Tensor.from_numpy("OUT", array)])])])
    assert sorted(store.keys("out")) == ["out/x/results-000000000000.npz", "out/x/results-000000000001.npz"]
    (small,), (whole,) = (
        [row.content.values for row in rows(f"{store.url}/out/x/results-00000000000{index}.npz", DataFormat.NPZ)]
        for index in range(2)
    )
    assert small is not None
    assert whole is not None
    assert small["OUT"].tolist() == [0.0, 1.0]
    assert (whole["OUT"] == large).all()


def test_a_bucket_that_is_not_there_takes_no_results(store: Store) -> None:
    place = f"{store.url}-none/out" if not store.url.startswith("as:") else f"{store.url}none/out"
    writer = OutputWriter(target_of(parse_place(place), os.environ), DataFormat.JSON_LINES, result_line)
    writer.open()
    with pytest.raises(ServerError, match=r"none"):
        writer.write([ResultRow(0, "", [InferenceResponse("m", 1, [])])])
