"""The sampler over a real core: only while somebody looks, one sample for all, and slow viewers skip."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.console.console import LiveConsole
from actors.console.sampler import LINGER_SECONDS, MOST_VIEWERS
from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from backends.registry import BackendRegistry
from protocol.console.interface import Tick
from protocol.errors import Cancelled, NotFound, Unavailable
from protocol.failures import CallbackFailures
from tests.actors.core.test_server_core import add_model
from tests.actors.fakes import fake_backend, request


@asynccontextmanager
async def watched(*models: Path, seconds: float = 0.0) -> AsyncIterator[tuple[LiveConsole, ServerCore, trio.Event]]:
    """A console of a core with these models; the event ends it."""
    settings = CoreSettings(models, control_mode=ControlMode.EXPLICIT, load_models=("*",), tracks_all_requests=True)
    core = ServerCore(settings, BackendRegistry({"fake": fake_backend(seconds=seconds)}))
    console, leaving = LiveConsole(core, CallbackFailures(), frozenset(), ""), trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        nursery.start_soon(console.sampler.run, leaving)
        yield console, core, leaving
        leaving.set()
        core.stop()


def read(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(data)
    return found


async def test_what_happens_is_in_the_next_sample(tmp_path: Path, autojump_clock: MockClock) -> None:
    add_model(tmp_path, "m")
    async with watched(tmp_path) as (console, core, _):
        with console.viewer() as viewer:
            first = await viewer.next()
            assert first is not None
            (row,) = read(first.whole)["models"]
            assert (row["name"], row["version"], row["state"], row["rate"]) == ("m", "1", "READY", 0.0)
            for _ in range(4):
                await core.infer(request(1))
            second = await viewer.next()
            assert second is not None
            assert second.number == first.number + 1
            (row,) = read(second.changes)["models"]
            assert row["rate"] == pytest.approx(4.0)
            third = await viewer.next()
            assert third is not None
            (row,) = read(third.changes)["models"]
            assert row["rate"] == 0.0
            fourth = await viewer.next()
            assert fourth is not None
            assert read(fourth.changes)["models"] == []
        history = console.history()
        assert history.series["rate"][-4:] == [0.0, 4.0, 0.0, 0.0]


async def test_nothing_is_sampled_while_nobody_looks(tmp_path: Path, autojump_clock: MockClock) -> None:
    """And what was counted meanwhile is not of the first second afterwards."""
    add_model(tmp_path, "m")
    async with watched(tmp_path) as (console, core, _):
        with console.viewer() as viewer:
            await viewer.next()
        await trio.sleep(60)
        await core.infer(request(1))
        with console.viewer() as viewer:
            found = await viewer.next()
        assert found is not None
        assert read(found.whole)["server"]["rate"] == 0
        sampled = sum(value is not None for value in console.history().series["queue"])
        assert sampled <= LINGER_SECONDS + 4


async def test_who_asks_again_and_again_is_told_of_the_time_between(tmp_path: Path, autojump_clock: MockClock) -> None:
    add_model(tmp_path, "m")
    async with watched(tmp_path) as (console, core, _):
        for seen in (0, 3):
            with console.viewer() as viewer:
                found = await viewer.next()
            assert found is not None
            assert read(found.whole)["server"]["rate"] == pytest.approx(seen)
            for _ in range(3):
                await core.infer(request(1))
            await trio.sleep(1.5)


async def test_a_version_that_is_loaded_again_is_watched_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    """And not at all once nobody looks."""
    add_model(tmp_path, "m")
    async with watched(tmp_path) as (console, core, _):
        with console.viewer() as viewer:
            await viewer.next()
            before = core.table.find("m").statistics
            await core.unload_model("m")
            await viewer.next()
            await core.load_model("m")
            after = core.table.find("m").statistics
            while after._watched is None:  # samples of the time of the load may wait still
                assert await viewer.next() is not None
            assert before._watched is None
            await core.infer(request(1))
            found = await viewer.next()
            assert found is not None
            (row,) = read(found.whole)["models"]
            assert row["p50"] is not None
        await trio.sleep(LINGER_SECONDS + 2)
        assert after._watched is None
        assert len(after._spreads) == 1


async def test_one_sample_serves_all_and_slow_ones_skip(tmp_path: Path, autojump_clock: MockClock) -> None:
    add_model(tmp_path, "m")
    async with watched(tmp_path) as (console, _, _):
        with console.viewer() as fast, console.viewer() as other, console.viewer() as slow:
            first = await slow.next()
            seen: list[Tick | None] = []
            for _ in range(5):
                tick = await fast.next()
                assert tick is await other.next()
                seen.append(tick)
            late = await slow.next()
            assert first is not None
            assert late is seen[-1]
            assert late is not None
            assert late.number == first.number + 4


async def test_a_version_that_goes_is_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    add_model(tmp_path, "m")
    async with watched(tmp_path) as (console, core, _):
        with console.viewer() as viewer:
            await viewer.next()
            await core.unload_model("m")
            await wait_all_tasks_blocked()
            found = await viewer.next()
            assert found is not None
            (row,) = read(found.changes)["models"]
            assert (row["state"], row["reason"]) == ("UNAVAILABLE", "unloaded")
            core.table.entries.clear()
            found = await viewer.next()
            assert found is not None
            assert read(found.changes)["gone"] == [["m", "1"]]


async def test_the_end_of_the_server_ends_every_viewer(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with watched(tmp_path) as (console, _, leaving):
        with console.viewer() as viewer:
            await viewer.next()
            leaving.set()
            await wait_all_tasks_blocked()
            assert await viewer.next() is None
        with pytest.raises(Unavailable), console.viewer():
            pass


async def test_viewers_have_a_bound(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Beyond it the one that has come first leaves; who looks once takes nobody's place."""
    async with watched(tmp_path) as (console, _, _):
        with ExitStack() as stack:
            first, second, *_ = [stack.enter_context(console.viewer()) for _ in range(MOST_VIEWERS)]
            found = await first.next()
            assert found is not None
            assert read(found.whole)["server"]["viewers"] == MOST_VIEWERS
            assert await console.glance() is not None
            assert await first.next() is not None
            last = stack.enter_context(console.viewer())
            await first.until_left()
            assert await first.next() is None
            assert await second.next() is not None
            found = await last.next()
            assert found is not None
            assert read(found.whole)["server"]["viewers"] == MOST_VIEWERS
        await trio.sleep(LINGER_SECONDS + 2)
        found = await console.glance()
        assert found is not None
        assert read(found.whole)["server"]["viewers"] == 0


async def test_a_defect_is_noted_and_sampling_goes_on(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(tmp_path) as (console, core, _):
        with console.viewer() as viewer:
            await viewer.next()
            monkeypatch.setattr(core, "accepted", lambda: 1 / 0)
            await trio.sleep(2.5)
            monkeypatch.undo()
            assert await viewer.next() is not None
        assert console.sampler._failures.counts() == {"background": 2}


async def test_requests_in_flight_are_listed_and_cancelled(tmp_path: Path, autojump_clock: MockClock) -> None:
    """With and without an id; each by its number, and no other."""
    add_model(tmp_path, "m")
    ended: list[str] = []
    async with watched(tmp_path, seconds=10) as (console, core, _), trio.open_nursery() as nursery:

        async def call(name: str, id: str) -> None:
            try:
                await core.infer(request(1, id=id))
            except Cancelled:
                name += " cancelled"
            ended.append(name)

        for name, id in (("a", ""), ("b", "x"), ("c", "")):
            nursery.start_soon(call, name, id)
            await trio.sleep(1)
        found = console.requests()
        assert found.count == 3
        assert [(row.model, row.version, row.id, row.is_stream) for row in found.requests] == [
            ("m", 1, "", False),
            ("m", 1, "x", False),
            ("m", 1, "", False),
        ]
        assert core.cancel("m", "x", 1) == 1
        assert console.cancel(found.requests[2].number)
        assert not console.cancel(found.requests[2].number)
        assert not console.cancel(10_000)
        await wait_all_tasks_blocked()
        assert sorted(ended) == ["b cancelled", "c cancelled"]
    assert sorted(ended) == ["a", "b cancelled", "c cancelled"]
    assert console.requests().count == 0


async def test_details_name_instances_and_deaths(tmp_path: Path, autojump_clock: MockClock) -> None:
    add_model(tmp_path, "m")
    async with watched(tmp_path) as (console, _, _):
        details = console.model("m")
        (version,) = details.versions
        (instance,) = version.instances
        assert (instance.state, instance.restarts, instance.last_error, instance.device) == ("ready", 0, "", "CPU")
        with pytest.raises(NotFound):
            console.model("other")
        with pytest.raises(NotFound):
            console.version_history("m", "2")
        assert set(console.version_history("m", "1").series["rate"]) <= {None, 0.0}
