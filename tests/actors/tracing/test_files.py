"""Mode triton: what is in the files, in which file, and what a full disk leaves."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from actors.tracing.files import TraceFiles, trace_entries
from actors.tracing.record import RequestTrace, TensorBudget
from actors.tracing.sampling import TraceSampling
from actors.tracing.sink import CannotTrace
from protocol.messages import Tensor
from protocol.server_settings import TraceSettings


def sampling(log_frequency: int = 0) -> TraceSampling:
    return TraceSampling(TraceSettings(("TIMESTAMPS", "TENSORS"), 1, log_frequency=log_frequency, file="t"))


def trace(id: int, of: TraceSampling | None = None) -> RequestTrace:
    made = RequestTrace(id, "m", of or sampling(), TensorBudget(10_000), lambda _: None)
    made.stamp("REQUEST_START", id * 10)
    return made


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def ids(path: Path) -> list[int]:
    return [entry["id"] for entry in read(path) if "model_name" in entry]


def test_the_entries_of_a_trace() -> None:
    """Model, timestamps in order, tensors."""
    made = trace(7)
    made.stamp("COMPUTE_END", 90)
    made.stamp("COMPUTE_START", 80)
    made.identify(3, "r")
    made.record_tensors("TENSOR_QUEUE_INPUT", [Tensor.from_numpy("x", np.array([[1.5, 0.1]], np.float32))])
    assert [json.loads(entry) for entry in trace_entries(made)] == [
        {"id": 7, "model_name": "m", "model_version": 3, "request_id": "r"},
        {
            "id": 7,
            "timestamps": [
                {"name": "REQUEST_START", "ns": 70},
                {"name": "COMPUTE_START", "ns": 80},
                {"name": "COMPUTE_END", "ns": 90},
            ],
        },
        {
            "id": 7,
            "activity": "TENSOR_QUEUE_INPUT",
            "tensor": {"name": "x", "data": "1.5,0.1", "shape": "1,2", "dtype": "FP32"},
        },
    ]


def test_a_request_that_never_reached_its_model() -> None:
    """It has no version and no id that the server had read."""
    made = RequestTrace(1, "m", sampling(), TensorBudget(0), lambda _: None)
    assert [json.loads(entry) for entry in trace_entries(made)] == [{"id": 1, "model_name": "m", "model_version": -1}]


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array([-1, 2], np.int8), "-1,2"),
        (np.array([2**64 - 1], np.uint64), "18446744073709551615"),
        (np.array([True, False]), "true,false"),
        (np.array([0.1, np.inf, np.nan], np.float64), "0.1,inf,nan"),
        (np.array([0.1], np.float16), "0.1"),
        (np.array([1.5], ml_dtypes.bfloat16), "1.5"),
        (np.array([b'a"b', "ü".encode(), b"\xff", b""], np.object_), '"a"b","ü","\\xff",""'),
        (np.zeros((0, 3), np.int32), ""),
    ],
)
def test_the_data_of_a_tensor(array: NDArray[Any], text: str) -> None:
    made = trace(1)
    made.record_tensors("TENSOR_BACKEND_OUTPUT", [Tensor.from_numpy("x", array)])
    tensor = json.loads(trace_entries(made)[-1])["tensor"]
    assert tensor["data"] == text
    assert tensor["shape"] == ",".join(map(str, array.shape))


def test_one_file_is_a_whole_array_after_every_write(tmp_path: Path) -> None:
    """So a crash loses nothing that was written; what an earlier server left is replaced."""
    path = tmp_path / "trace.json"
    path.write_text("of yesterday, and longer than what comes now " * 10)
    files = TraceFiles(str(path))
    for last in range(1, 4):
        files.write([trace(last)])
        assert ids(path) == list(range(1, last + 1))
    files.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


def test_a_file_that_was_taken_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    files = TraceFiles(str(path))
    files.write([trace(1)])
    path.unlink()
    files.write([trace(2)])
    assert ids(path) == [2]


def test_numbered_files_take_so_many_traces_each(tmp_path: Path) -> None:
    """Also across writes; other settings begin the next file, and settings without a frequency share the one."""
    files = TraceFiles(str(tmp_path / "t"))
    twos, other, single = sampling(2), sampling(2), sampling()
    files.write([trace(1, twos), trace(2, twos), trace(3, twos), trace(4, single)])
    files.write([trace(5, other)])
    files.write([trace(6, twos), trace(7, twos), trace(8, other), trace(9, sampling())])
    found = {path.name: ids(path) for path in tmp_path.iterdir()}
    assert found == {"t": [4, 9], "t.0": [1, 2], "t.1": [3, 6], "t.2": [5, 8], "t.3": [7]}


@contextmanager
def disk_with_room(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("log_frequency", [0, 5])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, log_frequency: int) -> None:
    """The traces that did not fit are lost, those before and after are not."""
    of = sampling(log_frequency)
    path = tmp_path / ("t.0" if log_frequency else "t")
    files = TraceFiles(str(tmp_path / "t"))
    with disk_with_room(20), pytest.raises(OSError, match="too large"):
        files.write([trace(1, of)])
    assert path.read_bytes() == b""
    files.write([trace(2, of)])
    with disk_with_room(path.stat().st_size + 20), pytest.raises(OSError, match="too large"):
        files.write([trace(3, of)])
    assert ids(path) == [2]
    files.write([trace(4, of)])
    assert ids(path) == [2, 4]


def test_a_directory_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(CannotTrace, match=r"directory of the trace file '.*no/t' does not exist"):
        TraceFiles(str(tmp_path / "no" / "t"))
