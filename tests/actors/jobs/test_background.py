"""Requests of jobs beside live ones, on the ordinary core, in virtual time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from actors.jobs.background import BackgroundRequests
from actors.jobs.joining import MOST_WAIT_SECONDS
from actors.jobs.live_times import ENOUGH
from actors.jobs.pace import ROW_SECONDS, SHARE, WHILE_SECONDS
from actors.jobs.riding import _Offer
from actors.mail.reply_slot import ReplySlot
from backends.registry import BackendRegistry
from protocol.errors import ServerError
from protocol.failures import CallbackFailures
from protocol.messages import InferenceResponse
from tests.actors.core.test_server_core import add_model
from tests.actors.fakes import FakeBackend, fake_backend, request

BATCHING = """
name: "m" backend: "fake" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { }
"""


@dataclass
class Fixture:
    core: ServerCore
    background: BackgroundRequests
    backend: type[FakeBackend]
    nursery: trio.Nursery
    answered: list[str] = field(default_factory=list)
    failed: list[ServerError] = field(default_factory=list)

    async def ask(self, name: str) -> None:
        try:
            await self.background.infer(request(id=name))
        except ServerError as error:
            self.failed.append(error)
        else:
            self.answered.append(name)

    async def live(self) -> InferenceResponse:
        """A request as the edge's callbacks give it."""
        slot = ReplySlot()
        submission = self.core.submit(request(id="live"), slot, later=True)
        self.core.flush()
        reply = await slot.receive()
        submission.end()
        assert isinstance(reply, InferenceResponse)
        return reply

    @property
    def batches(self) -> list[list[str]]:
        return self.backend.batches

    async def ask_many(self, count: int) -> None:
        for number in range(count):
            self.nursery.start_soon(self.ask, str(number))
        await wait_all_tasks_blocked()


@asynccontextmanager
async def served(folder: Path, backend: type[FakeBackend]) -> AsyncIterator[Fixture]:
    add_model(folder, "m", config=BATCHING)
    settings = CoreSettings((folder,), control_mode=ControlMode.EXPLICIT, load_models=("m",))
    core = ServerCore(settings, BackendRegistry({"fake": backend}))
    background = BackgroundRequests(core, CallbackFailures())
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        await nursery.start(background.run)
        yield Fixture(core, background, backend, nursery)
        nursery.cancel_scope.cancel()


async def test_they_join_the_batches_of_live_requests(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Once it is known that they cost these nothing."""
    async with served(tmp_path, fake_backend(seconds=0.05)) as it:
        it.nursery.start_soon(it.live)
        await wait_all_tasks_blocked()
        await it.ask_many(60)
        await trio.sleep(0.06)  # it is answered
        for _ in range(50):
            await it.live()
            await trio.sleep(0.0003)
        assert all(batch[0] == "live" for batch in it.batches)
        sizes = [len(batch) for batch in it.batches]
        assert set(sizes[:ENOUGH]) == {1}
        assert sizes.count(8) >= 5
        await trio.sleep(3)
        assert sorted(it.answered) == sorted(map(str, range(60)))
        assert sum(map(len, it.batches)) == 60 + 51


async def test_what_is_known_of_a_model_is_forgotten_when_it_is_loaded_anew(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with served(tmp_path, fake_backend(seconds=0.05)) as it:
        it.nursery.start_soon(it.live)
        await wait_all_tasks_blocked()
        await it.ask_many(1)
        for _ in range(40):
            await it.live()
        riding = it.background._lanes["m"].joining.riding
        assert riding.is_known
        await it.core.unload_model("m")
        await trio.sleep(0.1)
        await it.core.load_model("m")
        await it.ask_many(1)
        await it.live()
        assert it.background._lanes["m"].joining.riding is not riding


async def test_one_that_is_overdue_pays_for_no_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What its own model would have let go, had others not forbidden it, has not gone."""
    async with served(tmp_path, fake_backend(seconds=0.05)) as it:
        it.nursery.start_soon(it.live)
        await wait_all_tasks_blocked()
        await it.ask_many(2)
        for _ in range(40):
            await it.live()
        lane, now = it.background._lanes["m"], trio.current_time()
        riding = lane.joining.riding
        await it.ask_many(2)
        lane.joining.last_start, riding._credit = -math.inf, 3.0
        assert riding._offered(7, _Offer(0.0, 2.0))
        assert it.background._submit(lane, 0, now) == 1
        assert riding._credit == 3.0


async def test_live_requests_to_another_model_hold_them_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with served(tmp_path, fake_backend(seconds=0.0005)) as it:
        for number in range(600):
            it.background._pace.note_live(trio.current_time())
            await trio.sleep(0.001)
            if number == 100:
                await it.ask_many(1000)
        assert 1 <= len(it.answered) <= SHARE * 0.5 / ROW_SECONDS + 16
        await trio.sleep(0.2)
        assert len(it.answered) == 1000


async def test_without_live_requests_they_fill_the_batches(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with served(tmp_path, fake_backend(seconds=0.005)) as it:
        await it.ask("first")
        await trio.sleep(0.9)
        await it.ask_many(72)
        await trio.sleep(0.2)
        assert len(it.answered) == 73
        assert [len(batch) for batch in it.batches] == [1, *[8] * 9]
        await trio.sleep(2)
        assert not it.background._lanes


async def test_one_that_waits_can_be_cancelled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with served(tmp_path, fake_backend(seconds=5)) as it:
        it.nursery.start_soon(it.live)
        await wait_all_tasks_blocked()
        with trio.move_on_after(0.2) as scope:
            await it.ask("given up")
        assert scope.cancelled_caught
        await trio.sleep(10)
        assert not it.background._lanes
        assert it.batches == [["live"]]


async def test_one_that_runs_can_be_cancelled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with served(tmp_path, fake_backend(seconds=5)) as it:
        with trio.move_on_after(1) as scope:
            await it.ask("given up")
        assert scope.cancelled_caught
        await it.ask("next")
        assert it.answered == ["next"]


async def test_those_of_a_model_that_is_unloaded_are_answered(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with served(tmp_path, fake_backend(seconds=5)) as it:
        it.nursery.start_soon(it.live)
        await wait_all_tasks_blocked()
        await it.ask_many(3)
        await it.core.unload_model("m")
        await trio.sleep(10)
        assert len(it.failed) == 3


async def test_those_of_a_model_that_is_unloaded_are_answered_beside_live_requests_to_another(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with served(tmp_path, fake_backend()) as it:
        await trio.sleep_until(math.ceil(trio.current_time() / WHILE_SECONDS) * WHILE_SECONDS + 0.001)
        for number in range(200):  # while no rows go at all
            it.background._pace.note_live(trio.current_time())
            await trio.sleep(0.001)
            if number == 50:
                await it.ask_many(20)
            if number == 100:
                assert not it.answered
                await it.core.unload_model("m")
        assert len(it.failed) == 20


async def test_live_requests_without_a_pause_do_not_keep_them_for_ever(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with served(tmp_path, fake_backend(seconds=0.005)) as it:
        await it.ask_many(2)
        await trio.sleep(0.5)
        it.answered.clear()

        async def ask_on() -> None:
            while True:
                await it.live()

        for _ in range(20):  # more than a batch has room for
            it.nursery.start_soon(ask_on)
        await wait_all_tasks_blocked()
        await it.ask_many(3)
        await trio.sleep(3.5 * MOST_WAIT_SECONDS)
        assert len(it.answered) == 3


async def test_a_defect_costs_no_live_request(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, fake_backend(seconds=0.005)) as it:
        it.nursery.start_soon(it.live)
        await wait_all_tasks_blocked()
        await it.ask_many(1)
        with monkeypatch.context() as patch:
            patch.setattr(it.core, "load_of", lambda name: 1 // 0)
            await it.live()
        assert "could not join" in caplog.text
        await trio.sleep(1)
        assert it.answered == ["0"]
