"""Payload capture: what is taken, what is written, and that nothing waits for it."""

from __future__ import annotations

import base64
import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from actors.capture.capture import GRACE_SECONDS, CannotCapture, Capture
from actors.capture.captured_call import CapturedCall, Memory, size_of
from actors.capture.encoding import HEAD_ELEMENTS, REDACTED, CallEncoder
from actors.capture.sampling import CaptureSampling
from actors.capture.settings import CaptureFormat, CaptureSettings
from actors.capture.writer import CaptureWriter
from protocol.datatypes import DataType
from protocol.errors import Decoupled, Internal, NotFound
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from repository.stores.targets import FolderTarget
from tests.backends.python.processes import until

ALL = CaptureSettings(share=1.0)


def tensor(name: str, *values: float) -> Tensor:
    return Tensor.from_numpy(name, np.array(values, np.float32))


def request(*values: float, model: str = "m", **more: Any) -> InferenceRequest:
    return InferenceRequest(model, [tensor("IN", *values)], **more)


def response(*values: float) -> InferenceResponse:
    return InferenceResponse("m", 3, [tensor("OUT", *values)])


def ended(asked: InferenceRequest, *replies: InferenceResponse | Internal, cancelled: bool = False) -> CapturedCall:
    found: list[CapturedCall] = []
    call = CapturedCall(asked, Memory(1 << 20), size_of(asked.inputs), found.append)
    for reply in replies:
        call.take(reply)
    call.end(is_cancelled=cancelled)
    assert found == [call]
    return call


def described(call: CapturedCall, *redacted: str, most: int = 1 << 16) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CallEncoder(frozenset(redacted), most).line(call))
    return found


# What is taken.


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.25, 1 / 3, 0.9, 1.0])
def test_the_share_is_exact_and_even(share: float) -> None:
    sampling = CaptureSampling(share, {})
    taken = [sampling.takes("m") for _ in range(3000)]
    for count in range(1, 3001):
        assert abs(sum(taken[:count]) - share * count) <= 1
    assert sum(taken) == pytest.approx(share * 3000, abs=1)


def test_each_model_has_a_share_of_its_own_and_inventions_of_clients_take_no_memory() -> None:
    sampling = CaptureSampling(0.5, {"all": 1.0, "none": 0.0})
    assert sum(sampling.takes("all") for _ in range(10)) == 10
    assert sum(sampling.takes("none") for _ in range(10)) == 0
    for number in range(10_000):
        sampling.takes(f"invented {number}")
    assert len(sampling._due) <= 4096


def test_names_that_no_model_can_have_are_not_remembered() -> None:
    sampling = CaptureSampling(1.0, {})
    assert sampling.takes("x" * 255)
    assert not sampling.takes("x" * 256)


def test_calls_count_for_what_they_hold_until_there_is_nothing_to_write() -> None:
    memory = Memory(10_000)
    found: list[CapturedCall] = []
    for reply in (Decoupled("stream"), NotFound("none")):
        asked = request(1, 2)
        assert memory.has_taken(size_of(asked.inputs))
        call = CapturedCall(asked, memory, size_of(asked.inputs), found.append)
        call.take(reply)
        call.end()
        call.end()
    assert (memory.held, found) == (0, [])
    asked = request(*range(1000))
    assert memory.has_taken(size_of(asked.inputs))
    call = CapturedCall(asked, memory, size_of(asked.inputs), found.append)
    for _ in range(5):
        call.take(response(*range(500)))
    call.end()
    assert memory.held == call.size <= 10_000
    assert (len(call.responses), call.is_cut) == (1, True)


# What is written.


def test_the_request_is_one_of_the_protocol() -> None:
    asked = request(1, 2.5, id="a", requested_outputs=("OUT",), parameters={"p": 1}, priority=2, sequence_id=7)
    found = described(ended(asked, response(3)))
    assert found["request"] == {
        "id": "a",
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1.0, 2.5]}],
        "outputs": [{"name": "OUT"}],
        "parameters": {"p": 1, "sequence_id": 7, "sequence_start": False, "sequence_end": False, "priority": 2},
    }
    assert found["responses"] == [{"outputs": [{"name": "OUT", "datatype": "FP32", "shape": [1], "data": [3.0]}]}]
    assert (found["model"], found["version"], found["outcome"]) == ("m", "3", "ok")
    assert "error" not in found


def test_what_became_of_it() -> None:
    assert described(ended(request(1), cancelled=True))["outcome"] == "cancelled"
    failed = described(ended(request(1), response(1), Internal("broken \ud800")))
    assert (failed["outcome"], failed["error"], len(failed["responses"])) == (
        "error",
        {"kind": "INTERNAL", "message": "broken ?"},
        1,
    )


def test_values_are_left_out_by_name() -> None:
    asked = request(1, parameters={"user": "alice", "p": 1})
    text = CallEncoder(frozenset({"IN", "user"}), 1 << 16).line(ended(asked, response(2)))
    found = json.loads(text)["request"]
    assert found["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [1], "is_redacted": True}]
    assert found["parameters"] == {"user": REDACTED, "p": 1}
    assert b"alice" not in text


def test_of_large_tensors_the_first_elements_and_statistics_are_written() -> None:
    values = [*range(100), math.nan, math.inf]
    [found] = described(ended(request(*values)), most=64)["request"]["inputs"]
    assert (found["is_cut"], found["byte_size"], found["data"]) == (True, 408, list(range(HEAD_ELEMENTS)))
    assert found["statistics"] == {"finite": 100, "min": 0, "max": 99, "mean": 49.5, "std": pytest.approx(28.866, 1e-4)}
    long = InferenceRequest("m", [Tensor.from_numpy("T", np.array([b"x" * 100_000] * 40, dtype=object))])
    [text] = described(ended(long), most=1000)["request"]["inputs"]
    assert [len(each) for each in text["data"]] == [1024] * HEAD_ELEMENTS
    assert text["statistics"] == {}


def test_statistics_are_those_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(50, 3, 1000).astype(np.float32)
    values[::7] = np.nan
    monkeypatch.setattr("actors.capture.encoding.STATISTICS_ELEMENTS", 64)
    [found] = described(ended(request(*values)), most=64)["request"]["inputs"]
    finite = values[np.isfinite(values)].astype(np.float64)
    assert found["statistics"] == {
        "finite": finite.size,
        "min": finite.min(),
        "max": finite.max(),
        "mean": pytest.approx(finite.mean()),
        "std": pytest.approx(finite.std()),
    }


def test_the_first_texts_of_a_large_tensor_that_is_not_whole() -> None:
    data = encode_bytes_elements([b"x"] * 20)
    for broken, is_invalid in ((data + b"\xff\xff\xff\xff", False), (b"\xff\xff\xff\x00" + data, True)):
        asked = InferenceRequest("m", [Tensor("T", DataType.BYTES, (21,), broken)])
        [found] = described(ended(asked), most=10)["request"]["inputs"]
        assert found.get("is_invalid", False) == is_invalid
        assert found.get("data", []) == ([] if is_invalid else ["x"] * HEAD_ELEMENTS)


def test_texts_of_parameters_count_too() -> None:
    asked = request(1, parameters={"prompt": "x" * 5000, "n": 3})
    assert size_of(asked.inputs, asked.parameters) - size_of(asked.inputs) == 5000


@pytest.mark.parametrize("datatype", [each for each in DataType if each not in (DataType.BYTES, DataType.INVALID)])
def test_elements_of_every_datatype(datatype: DataType) -> None:
    array = np.array([0, 1, 1]).astype(datatype.dtype)
    asked = InferenceRequest("m", [Tensor.from_numpy("T", array)])
    for most in (0, 100):
        [found] = described(ended(asked), most=most)["request"]["inputs"]
        assert (found["datatype"], found["data"]) == (datatype.name, [0, 1, 1])


def test_texts_and_bytes() -> None:
    for values, member in (([b"a", "ä".encode()], {"data": ["a", "ä"]}), ([b"\xff"], None)):
        asked = InferenceRequest("m", [Tensor.from_numpy("T", np.array(values, dtype=object))])
        [found] = described(ended(asked))["request"]["inputs"]
        if member is None:
            assert base64.b64decode(found["data_base64"][0]) == b"\xff"
        else:
            assert found["data"] == member["data"]


def test_what_is_no_tensor_spoils_nothing() -> None:
    asked = InferenceRequest("m", [Tensor("T", DataType.FP32, (3,), b"12345"), tensor("IN", 1)])
    first, second = described(ended(asked))["request"]["inputs"]
    assert (first["is_invalid"], second["data"]) == (True, [1.0])


# Files.


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in files(folder) for line in path.read_bytes().splitlines()]


def test_a_file_is_written_by_size_and_by_time(tmp_path: Path) -> None:
    settings = CaptureSettings(share=1, file_bytes=2000, file_seconds=60)
    writer = CaptureWriter(settings, FolderTarget(tmp_path / "new" / "folder"))
    writer.open()
    writer.take([ended(request(number)) for number in range(3)], now=10.0)
    writer.flush(10.0)
    assert (files(tmp_path), writer.due_at) == ([], 70.0)
    writer.take([ended(request(3), response(*range(200)))], now=20.0)
    writer.flush(20.0)
    [first] = files(tmp_path)
    assert (len(lines(tmp_path)), writer.buffered_bytes, writer.due_at) == (4, 0, math.inf)
    assert first.parent.name == "m"
    assert first.suffix == ".jsonl"
    assert first.stat().st_mode & 0o777 == 0o600
    writer.take([ended(request(4, model="../evil"))], now=30.0)
    writer.flush(89.0)
    assert len(files(tmp_path)) == 1
    writer.flush(90.0)
    assert [path.parent.name for path in files(tmp_path)] == ["..%2Fevil", "m"]
    assert writer.take_written() == 5


def test_what_cannot_be_written_is_counted(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    writer = CaptureWriter(ALL, FolderTarget(folder))
    writer.open()
    folder.rmdir()
    folder.write_text("a file")
    writer.take([ended(request(1))], now=0.0)
    writer.flush(0.0, is_last=True)
    lost, problem = writer.take_lost()
    assert (lost, writer.take_written(), writer.buffered_bytes) == (1, 0, 0)
    assert "NotADirectoryError" in problem or "FileExistsError" in problem


def test_all_models_together_hold_no_more_than_half_of_the_memory(tmp_path: Path) -> None:
    settings = CaptureSettings(share=1, memory_bytes=4000)
    writer = CaptureWriter(settings, FolderTarget(tmp_path))
    writer.open()
    for number in range(40):
        writer.take([ended(request(number, model=f"m{number % 7}"))], now=0.0)
        writer.flush(0.0)
        assert writer.buffered_bytes <= 2000
    writer.flush(0.0, is_last=True)
    assert len(lines(tmp_path)) == 40


def test_parquet_has_a_column_for_each_tensor(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    writer = CaptureWriter(CaptureSettings(share=1, format=CaptureFormat.PARQUET), FolderTarget(tmp_path))
    writer.open()
    mixed = InferenceRequest("m", [Tensor.from_numpy("IN", np.array(["text"], dtype=object))])
    for calls in ([ended(request(1, 2), response(3)), ended(request(4), Internal("no"))], [ended(mixed)]):
        writer.take(calls, now=0.0)
    writer.take([ended(request(1, model="other"))], now=0.0)
    writer.flush(0.0, is_last=True)
    assert writer.take_lost()[0] == 0
    of_m, other = (pq.read_table(path).to_pydict() for path in files(tmp_path))
    assert other["input.IN"] == [[1.0]]
    assert [json.loads(each)["inputs"][0]["data"] for each in of_m["request"]] == [[1.0, 2.0], [4.0], ["text"]]
    assert of_m["input.IN"] == ["[1.0,2.0]", "[4.0]", '["text"]']  # of no common type
    assert of_m["output.OUT"] == [[3.0], None, None]
    assert (of_m["outcome"], of_m["error"]) == (["ok", "error", "ok"], [None, "no", None])
    assert of_m["time"][0].tzinfo is not None


# The actor.


class HangingTarget:
    """Takes nothing before it is let go."""

    def __init__(self) -> None:
        self.is_held = threading.Event()
        self.go = threading.Event()
        self.names: list[str] = []

    def open(self) -> None:
        pass

    def write(self, name: str, data: bytes) -> None:
        self.is_held.set()
        self.go.wait(60)
        self.names.append(name)


def run_call(capture: Capture, *values: float) -> None:
    call = capture.begin(request(*values))
    if call is not None:
        call.take(response(*values))
        call.end()


async def written(capture: Capture, count: int, *, lost: int = 0) -> None:
    await until(lambda: capture.written >= count and capture.dropped["write"] >= lost)


async def test_calls_are_written_as_their_files_are_due_and_at_the_end(tmp_path: Path) -> None:
    settings = CaptureSettings(share=1, file_seconds=0.01)
    capture = Capture(settings, CaptureWriter(settings, FolderTarget(tmp_path)))
    assert capture.begin(request(0)) is None  # before it runs
    async with trio.open_nursery() as nursery:
        await nursery.start(capture.run)
        for number in range(600):
            run_call(capture, number)
        await written(capture, 600)
        run_call(capture, 600)
        left = capture.begin(request(601))
        nursery.cancel_scope.cancel()
    assert left is not None
    left.end()
    assert [line["request"]["inputs"][0]["data"][0] for line in lines(tmp_path)] == list(range(601))
    assert capture.begin(request(0)) is None
    assert capture.dropped == {"memory": 0, "write": 0}


async def test_a_target_that_hangs_holds_no_request_and_no_more_than_the_memory() -> None:
    target = HangingTarget()
    settings = CaptureSettings(share=1, memory_bytes=1 << 20, file_bytes=1)
    capture = Capture(settings, CaptureWriter(settings, target))
    async with trio.open_nursery() as nursery:
        await nursery.start(capture.run)
        for _ in range(3):
            for number in range(300):
                run_call(capture, *range(number, number + 200))
            await trio.testing.wait_all_tasks_blocked()
        assert capture.dropped["memory"] > 300
        assert capture._memory.held <= 1 << 20
        target.go.set()
        await written(capture, 1)
        nursery.cancel_scope.cancel()
    assert capture.written + capture.dropped["memory"] == 900
    assert capture._memory.held == 0


async def test_the_end_does_not_wait_for_a_target_that_hangs(mock_clock: trio.testing.MockClock) -> None:
    target = HangingTarget()
    settings = CaptureSettings(share=1, file_bytes=1)
    capture = Capture(settings, CaptureWriter(settings, target))
    with trio.fail_after(2 * GRACE_SECONDS):
        async with trio.open_nursery() as nursery:
            await nursery.start(capture.run)
            run_call(capture, 1)
            while not target.is_held.is_set():
                await trio.lowlevel.checkpoint()
            mock_clock.autojump_threshold = 0  # only now: the clock does not see that a thread is at work
            nursery.cancel_scope.cancel()
    target.go.set()


async def test_a_target_that_is_none_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    capture = Capture(ALL, CaptureWriter(ALL, FolderTarget(tmp_path / "file")))
    with pytest.raises(CannotCapture, match="file"):
        await capture.run()


async def test_a_defect_in_the_writing_ends_nothing(tmp_path: Path) -> None:
    class Broken(CaptureWriter):
        def take(self, calls: Sequence[CapturedCall], now: float) -> None:
            if calls and calls[0].inputs[0].shape == (1,):
                raise ZeroDivisionError
            super().take(calls, now)

    settings = CaptureSettings(share=1, file_bytes=1)
    capture = Capture(settings, Broken(settings, FolderTarget(tmp_path)))
    async with trio.open_nursery() as nursery:
        await nursery.start(capture.run)
        run_call(capture, 1)
        await written(capture, 0, lost=1)
        run_call(capture, 1, 2)
        await written(capture, 1)
        assert capture._memory.held == 0
        nursery.cancel_scope.cancel()


async def test_models_of_long_names_have_folders(tmp_path: Path) -> None:
    settings = CaptureSettings(share=1, file_bytes=1)
    capture = Capture(settings, CaptureWriter(settings, FolderTarget(tmp_path)))
    names = ["\N{SNOWMAN}" * 60 + end for end in "ab"]
    async with trio.open_nursery() as nursery:
        await nursery.start(capture.run)
        for name in names:
            call = capture.begin(request(1, model=name))
            assert call is not None
            call.take(response(1))
            call.end()
        await written(capture, 2)
        nursery.cancel_scope.cancel()
    assert len(lines(tmp_path)) == 2
    assert capture.dropped["write"] == 0
