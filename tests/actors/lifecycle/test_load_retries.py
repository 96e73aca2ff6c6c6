"""Loads that are tried again (`--model-load-retry-count`), and those of which no more than so many run at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from backends.registry import BackendRegistry
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable
from tests.actors.core.test_server_core import PBTXT, add_model
from tests.actors.fakes import FakeBackend, fake_backend, request


@asynccontextmanager
async def running(
    repository: Path, backend: type[FakeBackend], *, retries: int, at_once: int = 4
) -> AsyncIterator[ServerCore]:
    settings = CoreSettings(
        (repository,),
        control_mode=ControlMode.EXPLICIT,
        model_load_retry_count=retries,
        model_load_thread_count=at_once,
    )
    core = ServerCore(settings, BackendRegistry({"fake": backend}))
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        yield core
        core.stop()


def failing(times: int, error: ServerError) -> type[FakeBackend]:
    """Its first loads fail."""
    left = times

    def on_load(backend: FakeBackend) -> None:
        nonlocal left
        if left:
            left -= 1
            raise error

    return fake_backend(on_load=on_load)


async def test_a_failure_that_passes(tmp_path: Path, autojump_clock: MockClock) -> None:
    """With growing delays; what did not load is unloaded each time."""
    add_model(tmp_path, "m")
    backend = failing(2, Unavailable("no room"))
    async with running(tmp_path, backend, retries=2) as core:
        began = trio.current_time()
        await core.load_model("m")
        assert trio.current_time() - began == pytest.approx(0.5 + 1.0)
        assert len((await core.infer(request())).outputs) == 1
        (entry,) = await core.repository_index()
        assert (entry.state, entry.reason) == ("READY", "")
    assert len(backend.made) == 3
    assert [each.unloads for each in backend.made] == [1, 1, 1]


async def test_a_failure_that_stays(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The last error is the answer, and the old version serves on."""
    add_model(tmp_path, "m")
    backend = fake_backend()
    async with running(tmp_path, backend, retries=3) as core:
        await core.load_model("m")
        errors = iter(range(100))

        def on_load(backend: FakeBackend) -> None:
            raise Internal(f"attempt {next(errors)}")

        backend.on_load = staticmethod(on_load)
        add_model(tmp_path, "m", versions=(2,))
        with pytest.raises(InvalidArgument, match="attempt 3"):
            await core.load_model("m")
        assert core.model_metadata("m").versions == ("1",)
    assert next(errors) == 4


@pytest.mark.parametrize("where", ["configuration", "backend"])
async def test_a_fault_of_the_files_is_not_tried_again(tmp_path: Path, autojump_clock: MockClock, where: str) -> None:
    add_model(tmp_path, "m", config=PBTXT + ("max_batch_size: -1\n" if where == "configuration" else ""))
    backend = failing(100, InvalidArgument("wrong tensor"))
    async with running(tmp_path, backend, retries=5) as core:
        began = trio.current_time()
        with pytest.raises(InvalidArgument):
            await core.load_model("m")
        assert trio.current_time() == began
    assert len(backend.made) == (0 if where == "configuration" else 1)


async def test_no_more_load_at_a_time_than_the_limit(tmp_path: Path) -> None:
    for name in "abcdef":
        add_model(tmp_path, name)
    most = now = 0
    two_load = trio.Event()

    class Slow(fake_backend()):  # type: ignore[misc]  # a class made for this test
        async def load(self) -> None:
            nonlocal most, now
            now += 1
            most = max(most, now)
            if now == 2:
                two_load.set()
            await two_load.wait()
            await trio.testing.wait_all_tasks_blocked()
            now -= 1

    async with running(tmp_path, Slow, retries=0, at_once=2) as core, trio.open_nursery() as loads:
        for name in "abcdef":
            loads.start_soon(core.load_model, name)
    assert most == 2
