"""The tracer: settings in force, traces from the edge to the file, and what happens when the disk cannot follow."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import actors.tracing.tracer
from actors.tracing.record import RequestTrace
from actors.tracing.settings import ExportSettings, TracerSettings
from actors.tracing.sink import CannotTrace
from actors.tracing.tracer import QUEUED_TRACES, Tracer
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, NotFound, ServerError, Unavailable, Unsupported
from protocol.messages import Tensor
from protocol.server_settings import Trace, TraceSettings

ON = ["TIMESTAMPS"]


def is_model_ready(name: str) -> bool:
    """Models a and b serve, c is restarting, d is loading."""
    match name:
        case "a" | "b":
            return True
        case "c":
            return False
        case "d":
            raise Unavailable("Request for unknown model: 'd' version 1 is not at ready state")
    raise NotFound(f"Request for unknown model: '{name}' is not found")


def tracer(file: Path | str = "", *level: str, **values: Any) -> Tracer:
    start = TraceSettings(level=level or ("OFF",), file=str(file), **{"rate": 1, **values})
    return Tracer(TracerSettings(start), is_model_ready)


@asynccontextmanager
async def running(made: Tracer) -> AsyncIterator[Tracer]:
    """Cancelled at the end, as the server does it."""
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield made
        nursery.cancel_scope.cancel()


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for what a thread brings about."""
    for _ in range(1000):
        if holds():
            return
        await trio.sleep(0.01)
    raise AssertionError("it has not come about")


def entries(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_bytes())
    return found


def traced(path: Path) -> list[str]:
    return [entry["model_name"] for entry in entries(path) if "model_name" in entry]


def request(made: Tracer, model: str = "a", **context: str) -> bool:
    """One traced or untraced request; whether it was traced."""
    trace = made.sample(model, **context)
    if trace is not None:
        trace.stamp("HTTP_RECV_START")
        trace.end()
    return trace is not None


async def test_traces_come_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    async with running(tracer(path, "TIMESTAMPS")) as made:
        for _ in range(3):
            assert request(made)
        late = made.sample("b")
        assert late is not None
        late.stamp("HTTP_RECV_START")
        late.end()
    assert traced(path) == ["a", "a", "a", "b"]
    assert [entry["id"] for entry in entries(path) if "timestamps" in entry] == [1, 2, 3, 4]
    assert made.lost_count == 0


async def test_traces_are_in_the_file_before_the_end(tmp_path: Path) -> None:
    """A server that crashes leaves them."""
    path = tmp_path / "t.json"
    async with running(tracer(path, "TIMESTAMPS")) as made:
        request(made)
        await eventually(lambda: path.exists() and path.read_bytes().endswith(b"]\n"))
        assert traced(path) == ["a"]


async def test_nothing_is_traced_while_it_does_not_run(tmp_path: Path) -> None:
    made = tracer(tmp_path / "t.json", "TIMESTAMPS")
    assert not request(made)
    async with running(made):
        open_trace = made.sample("a")
        assert open_trace is not None
    open_trace.end()
    assert not request(made)
    assert os.listdir(tmp_path) == []


async def test_tracing_is_switched_on_and_off_at_run_time(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    async with running(tracer(path, rate=1000)) as made:
        assert not request(made)
        new = made.update({"trace_level": ON, "trace_rate": ["2"], "trace_count": ["2"]})
        assert new == made.settings() == TraceSettings(("TIMESTAMPS",), 2, 2, file=str(path))
        assert [request(made) for _ in range(6)] == [False, True, False, True, False, False]
        assert made.settings().count == 0
        made.update({"trace_count": ["-1"]})
        assert [request(made) for _ in range(3)] == [False, True, False]
        made.update({"trace_level": ["OFF"]})
        assert not request(made)
        assert not request(made)
    assert traced(path) == ["a", "a", "a"]


async def test_a_model_follows_the_global_settings_but_for_its_own(tmp_path: Path) -> None:
    async with running(tracer(tmp_path / "t.json")) as made:
        made.update({"trace_level": ON, "log_frequency": ["5"]}, "a")
        assert (request(made, "a"), request(made, "b")) == (True, False)
        made.update({"trace_rate": ["3"], "log_frequency": ["7"]})
        own = made.settings("a")
        assert (own.level, own.rate, own.log_frequency) == (("TIMESTAMPS",), 3, 5)
        assert made.settings("b") == made.settings()
        made.update({"log_frequency": None}, "a")
        assert made.settings("a").log_frequency == 7
        request(made, "a")
        assert made.update({"trace_level": None}, "a") == made.settings("a") == made.settings()
        made.update({"trace_rate": None, "log_frequency": None})
        assert made.settings() == made.settings("a") == TraceSettings(rate=1, file=str(tmp_path / "t.json"))


async def test_a_count_goes_on_when_something_else_is_changed(tmp_path: Path) -> None:
    async with running(tracer(tmp_path / "t.json", "TIMESTAMPS", count=5)) as made:
        request(made)
        assert made.update({"trace_rate": ["2"]}).count == 4
        made.update({"trace_rate": ["1"]}, "a")
        request(made, "a")
        assert (made.settings("a").count, made.settings().count) == (3, 4)
        assert made.update({}) == made.settings()


@pytest.mark.parametrize(
    ("model", "error", "text"),
    [
        ("x", NotFound, "Request for unknown model: 'x' is not found"),
        ("c", InvalidArgument, "Request for unknown model : c"),
        ("d", Unavailable, "Request for unknown model: 'd' version 1 is not at ready state"),
    ],
)
async def test_settings_of_models_that_do_not_serve(model: str, error: type[ServerError], text: str) -> None:
    made = tracer()
    for ask in (made.settings, lambda name: made.update({"trace_rate": ["1"]}, name)):
        with pytest.raises(error) as caught:
            ask(model)
        assert caught.value.message == text


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"trace_level": ON}, InvalidArgument),  # no file
        ({"trace_rate": ["0"], "trace_count": ["x"]}, InvalidArgument),
        ({"trace_file": ["x"], "trace_rate": ["1"]}, Unsupported),
    ],
)
def test_a_refused_change_changes_nothing(changes: dict[str, Sequence[str] | None], error: type[ServerError]) -> None:
    made = tracer()
    before = made.settings()
    for model in ("", "a"):
        with pytest.raises(error):
            made.update(changes, model)
    assert made.settings() == made.settings("a") == before


async def test_requests_for_unknown_models_are_not_traced(tmp_path: Path) -> None:
    """They would use up the count; those for a model that is restarting fail, and are of interest."""
    async with running(tracer(tmp_path / "t.json", "TIMESTAMPS")) as made:
        assert [request(made, model) for model in ("x", "d", "c", "a")] == [False, False, True, True]


async def test_more_traces_than_can_wait_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The requests do not wait for the disk."""
    path = tmp_path / "t.json"
    async with running(tracer(path, "TIMESTAMPS")) as made:
        for _ in range(QUEUED_TRACES + 3):  # the writer has no turn meanwhile
            request(made)
        assert made.lost_count == 2  # one went to the writer at once
    assert len(traced(path)) == QUEUED_TRACES + 1
    assert f"more than {QUEUED_TRACES} wait to be written" in caplog.text


async def test_a_file_that_cannot_be_written_is_the_log_s_concern(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t").mkdir()
    async with running(tracer(tmp_path / "t", "TIMESTAMPS")) as made:
        for _ in range(5):
            request(made)
    assert made.lost_count == 5
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3  # the 1st, 2nd and 4th loss
    assert "Is a directory" in caplog.text


async def test_a_defect_in_writing_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t.json"
    async with running(tracer(path, "TENSORS")) as made:
        bad = made.sample("a")
        assert bad is not None
        bad.record_tensors("TENSOR_QUEUE_INPUT", [Tensor("x", DataType.FP32, (3,), b"1")])
        bad.end()
        await eventually(lambda: made.lost_count > 0)
        request(made, "b")
    assert traced(path) == ["b"]
    assert "traces could not be written" in caplog.text


async def test_a_disk_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here a pipe that nobody reads."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setattr(actors.tracing.tracer, "GRACE_SECONDS", 0.05)
    with trio.fail_after(10):
        async with running(tracer(path, "TIMESTAMPS")) as made:
            request(made)
    assert "1 traces are lost: writing has taken more than 0.05 s" in caplog.text
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # lets the thread end


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (TracerSettings(TraceSettings(("TIMESTAMPS",))), "trace file name is not given"),
        (TracerSettings(TraceSettings(file="/no/such/t.json")), "directory of the trace file '/no/such/t.json'"),
        (
            TracerSettings(TraceSettings(mode="opentelemetry"), ExportSettings(bsp_max_queue_size=1)),
            "max_export_batch_size must be less than or equal to max_queue_size",
        ),
    ],
)
async def test_tracing_that_cannot_start(settings: TracerSettings, text: str) -> None:
    async with trio.open_nursery() as nursery:
        with pytest.raises(CannotTrace, match=text):
            await nursery.start(Tracer(settings, is_model_ready).run)


async def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "actors.tracing.export", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    async with trio.open_nursery() as nursery:
        with pytest.raises(CannotTrace, match=r"needs the extra 'trace' .*: pip install trioton\[trace\]"):
            await nursery.start(Tracer(TracerSettings(TraceSettings(mode="opentelemetry")), is_model_ready).run)


def test_it_is_what_the_edges_expect() -> None:
    """Checked by the types, too."""
    trace: Trace | None = tracer().sample("a")
    assert trace is None
    assert not tracer().follows_context
    assert RequestTrace.__doc__


async def test_settings_of_models_that_have_gone_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one that is only unloaded do."""
    monkeypatch.setattr(actors.tracing.tracer, "KEPT_MODELS", 4)
    there: set[str] = set()

    def is_ready(name: str) -> bool:
        if name in there:
            return True
        if name == "unloaded":
            raise Unavailable("not now")
        raise NotFound("unknown")

    made = Tracer(TracerSettings(TraceSettings()), is_ready)
    there |= {"kept", "unloaded"}
    for name in sorted(there):
        made.update({"trace_rate": ["7"]}, name)
    there.remove("unloaded")
    for number in range(100):
        there.add(f"m{number}")
        made.update({"trace_rate": ["5"]}, f"m{number}")
        there.remove(f"m{number}")
    assert len(made._models) == len(made._own) <= 6
    there.add("unloaded")
    assert [made.settings(name).rate for name in ("kept", "unloaded")] == [7, 7]
