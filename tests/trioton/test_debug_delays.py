"""Triton's debugging variables: how they are read, and what they do to the calls of the gRPC edge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from protocol.core import InferenceCore, Respond
from protocol.errors import Internal
from protocol.messages import InferenceRequest, InferenceResponse
from trioton.cli import settings_from
from trioton.debug_delays import VARIABLES, DebugDelays, debug_delays
from trioton.delayed_core import DelayedCore
from trioton.flags.fields import UsageError
from trioton.run import run_settings

REQUEST = InferenceRequest("m", [])


def test_none_is_none() -> None:
    delays = debug_delays({"TRITONSERVER_DELAY_SCHEDULER": "", "PATH": "/bin"})
    assert delays == DebugDelays()
    assert not delays.holds_calls
    assert delays.notices() == []


@pytest.mark.parametrize("name", VARIABLES)
def test_each_is_read(name: str) -> None:
    delays = debug_delays({name: " 12 "})
    assert [value for value in (getattr(delays, field) for field in DebugDelays.__slots__) if value] == [12]
    assert delays.holds_calls is ("SCHEDULER" not in name)
    assert name in delays.notices()[0]


def test_two_for_one_step_add_up() -> None:
    delays = debug_delays({"TRITONSERVER_DELAY_GRPC_PROCESS_ENTRY": "10", "TRITONSERVER_DELAY_GRPC_PROCESS": "5"})
    assert delays == DebugDelays(process_ms=15)


@pytest.mark.parametrize("text", ["-1", "2s", "1.5", "9" * 12])
def test_what_is_no_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="TRITONSERVER_DELAY_SCHEDULER: expected a whole number, got"):
        debug_delays({"TRITONSERVER_DELAY_SCHEDULER": text})


def test_servers_have_them_from_the_environment(tmp_path: Path) -> None:
    environment = {"TRITONSERVER_DELAY_SCHEDULER": "3", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "1"}
    settings = settings_from([f"--model-repository={tmp_path}"], environment)
    assert settings.debug_delays == DebugDelays(requests=3, backlog=1)
    assert any("TRITONSERVER_DELAY_SCHEDULER" in notice for notice in settings.notices())
    (tmp_path / "model.py").write_text("")
    assert run_settings([str(tmp_path)], environment).debug_delays == DebugDelays(requests=3, backlog=1)


class Core:
    """Takes a second, or as long as it takes to be cancelled; `cancelled_at` is when it was."""

    def __init__(self, *, fails: bool = False, seconds: float = 1) -> None:
        self.fails = fails
        self.seconds = seconds
        self.began_at: float | None = None
        self.cancelled_at: float | None = None

    def is_ready(self) -> bool:
        return True

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        async with self._run():
            return InferenceResponse("m", 1, [])

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        async with self._run():
            for _ in range(2):
                await respond(InferenceResponse("m", 1, []))
            return True

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        self.began_at = trio.current_time()
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.cancelled_at = trio.current_time()
            raise
        if self.fails:
            raise Internal("boom")
        yield


def delayed(core: Core, **delays: int) -> Any:
    return DelayedCore(cast(InferenceCore, core), DebugDelays(**delays))


async def test_a_call_is_held_before_its_model_and_before_its_answer(autojump_clock: MockClock) -> None:
    core = Core()
    await delayed(core, process_ms=10_000, completion_ms=5_000).infer(REQUEST)
    assert (core.began_at, trio.current_time()) == (10, 16)


async def test_each_response_of_a_stream_is_held_and_its_end(autojump_clock: MockClock) -> None:
    times: list[float] = []

    async def respond(response: InferenceResponse) -> None:
        times.append(trio.current_time())

    made = delayed(Core(), process_ms=1_000, response_ms=10_000, complete_ms=5_000)
    assert await made.infer_stream(REQUEST, respond) is True
    assert (times, trio.current_time()) == ([12, 22], 27)


@pytest.mark.parametrize("cancel_ms", [0, 3_000])
async def test_a_model_hears_late_that_its_client_has_gone(autojump_clock: MockClock, cancel_ms: int) -> None:
    core = Core(seconds=100)
    with trio.move_on_after(2) as scope:
        await delayed(core, cancel_ms=cancel_ms).infer(REQUEST)
    assert scope.cancelled_caught
    assert core.cancelled_at == 2 + cancel_ms / 1000


async def test_a_call_that_ends_before_its_cancel_is_heard_is_cancelled_all_the_same(autojump_clock: MockClock) -> None:
    core = Core(seconds=3)
    with trio.move_on_after(2) as scope:
        await delayed(core, cancel_ms=60_000).infer(REQUEST)
    assert scope.cancelled_caught
    assert (core.cancelled_at, trio.current_time()) == (None, 3)


@pytest.mark.parametrize("cancel_ms", [0, 10])
async def test_an_error_is_what_it_was(autojump_clock: MockClock, cancel_ms: int) -> None:
    with pytest.raises(Internal, match="boom"):
        await delayed(Core(fails=True), cancel_ms=cancel_ms).infer(REQUEST)


def test_all_else_is_the_cores_own() -> None:
    made = delayed(Core(), process_ms=1)
    assert made.is_ready()
