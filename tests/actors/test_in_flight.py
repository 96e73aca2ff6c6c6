"""Cancelling requests by their id, wherever they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core import CoreSettings, ServerCore
from actors.in_flight import InFlight
from backends.registry import BackendRegistry
from protocol.errors import Cancelled, InvalidArgument, NotFound
from tests.actors.fakes import fake_backend, request
from tests.actors.test_core import add_model


async def test_all_requests_of_an_id_are_stopped_and_no_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One runs, others wait in the queue; the running batch goes on, and the instance serves."""
    add_model(tmp_path, "m")
    backend = fake_backend(seconds=10)
    core = ServerCore(CoreSettings((tmp_path,)), BackendRegistry({"fake": backend}))
    ended: list[tuple[str, str]] = []

    async def call(id: str) -> None:
        try:
            ended.append((id, (await core.infer(request(4, id=id))).id))
        except Cancelled as error:
            ended.append((id, error.message))

    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        began = trio.current_time()
        async with trio.open_nursery() as calls:
            for id in ("a", "b", "b", "c"):
                calls.start_soon(call, id)
                await wait_all_tasks_blocked()
            assert core.cancel("m", "a") == 1
            assert core.cancel("m", "b") == 2
            await wait_all_tasks_blocked()
            assert sorted(ended) == [
                (id, f"[request id: {id}] request to model 'm' was cancelled") for id in ("a", "b", "b")
            ]
            assert trio.current_time() == began
            assert core.cancel("m", "b") == 0
        assert ended[-1] == ("c", "c")
        (snapshot,) = core.snapshots()
        assert snapshot.failures["CANCELED"] == 3
        assert backend.batches == [["a"], ["c"]]
        with pytest.raises(NotFound, match="'nope' is not found"):
            core.cancel("nope", "a")
        core.stop()


async def test_streams_are_stopped_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    add_model(tmp_path, "m")
    core = ServerCore(CoreSettings((tmp_path,)), BackendRegistry({"fake": fake_backend(seconds=10)}))

    async def respond(_: object) -> None:
        raise AssertionError("it was cancelled before")

    async def call() -> None:
        with pytest.raises(Cancelled):
            await core.infer_stream(request(id="a"), respond)

    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        assert core.cancel("m", "a") == 1
        core.stop()


async def wait() -> None:
    await trio.sleep_forever()


async def test_nothing_is_left_of_requests_that_have_ended() -> None:
    requests = InFlight()

    async def fail() -> None:
        raise InvalidArgument("no")

    async def answer() -> int:
        assert len(requests) == 1
        return 7

    assert await requests.run(request(id="a"), answer()) == 7
    with pytest.raises(InvalidArgument):
        await requests.run(request(id="a"), fail())
    with trio.move_on_after(0):
        await requests.run(request(id="a"), wait())
    assert len(requests) == 0
    assert requests.cancel("m", "a") == 0


async def test_a_caller_that_is_cancelled_itself_is_not_told_otherwise() -> None:
    requests = InFlight()
    with trio.CancelScope() as scope:
        scope.cancel()
        await requests.run(request(id="a"), wait())
    assert scope.cancelled_caught
