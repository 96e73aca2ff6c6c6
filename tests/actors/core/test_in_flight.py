"""Cancelling requests by their id, wherever they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.core.in_flight import InFlight
from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from backends.registry import BackendRegistry
from protocol.errors import Cancelled, InvalidArgument, NotFound, ServerError
from tests.actors.core.test_server_core import add_model
from tests.actors.fakes import fake_backend, request


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
            assert core.cancel("m", "a") == 0  # it ends in its own task, soon
            assert core.cancel("m", "b", 1) == 2
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
        with pytest.raises(NotFound, match="'m' version 2 is not found"):
            core.cancel("m", "a", 2)
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

    assert await requests.run(request(id="a"), 1, answer()) == 7
    with pytest.raises(InvalidArgument):
        await requests.run(request(id="a"), 1, fail())
    with trio.move_on_after(0):
        await requests.run(request(id="a"), 1, wait())
    assert len(requests) == 0
    assert requests.cancel("m", "a") == 0


async def test_a_caller_that_is_cancelled_itself_is_not_told_otherwise() -> None:
    requests = InFlight()
    with trio.CancelScope() as scope:
        scope.cancel()
        await requests.run(request(id="a"), 1, wait())
    assert scope.cancelled_caught


async def test_a_version_leaves_the_requests_of_others_alone() -> None:
    requests = InFlight()
    ended: list[int] = []

    async def call(version: int) -> None:
        with pytest.raises(Cancelled):
            await requests.run(request(id="a"), version, wait())
        ended.append(version)

    async with trio.open_nursery() as nursery:
        for version in (1, 2, 2):
            nursery.start_soon(call, version)
        await wait_all_tasks_blocked()
        assert requests.cancel("m", "a", 2) == 2
        await wait_all_tasks_blocked()
        assert ended == [2, 2]
        assert requests.cancel("m", "a", 3) == 0
        assert requests.cancel("m", "a") == 1


async def test_a_model_on_its_way_out_has_requests_that_can_be_stopped(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It serves nobody any more, and yet its last requests are under way."""
    add_model(tmp_path, "m")
    settings = CoreSettings((tmp_path,), control_mode=ControlMode.EXPLICIT, load_models=("m",))
    core = ServerCore(settings, BackendRegistry({"fake": fake_backend(seconds=10)}))

    async def call() -> None:
        with pytest.raises(Cancelled):
            await core.infer(request(id="a"))

    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        await core.unload_model("m")
        with pytest.raises(ServerError):
            core.model_metadata("m")
        assert core.cancel("m", "a") == 1
        core.stop()


async def test_those_without_an_id_are_kept_for_people_who_look(tmp_path: Path, autojump_clock: MockClock) -> None:
    """By the order in which they came, with a number that stays; none is left of what has ended."""
    add_model(tmp_path, "m")
    settings = CoreSettings((tmp_path,), tracks_all_requests=True)
    core = ServerCore(settings, BackendRegistry({"fake": fake_backend(seconds=10)}))
    ended: list[str] = []

    async def call(name: str) -> None:
        try:
            await core.infer(request(id=name if name == "b" else ""))
            ended.append(name)
        except Cancelled:
            ended.append(f"{name} cancelled")

    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        async with trio.open_nursery() as calls:
            for name in ("a", "b", "c"):
                calls.start_soon(call, name)
                await trio.sleep(1)
            assert not core.in_flight.cancel_numbered(0)
            first, second, third = core.in_flight.listed()
            assert [each.request.id for each in (first, second, third)] == ["", "b", ""]
            assert core.in_flight.listed() == [first, second, third]
            assert (first.model, first.version, first.is_stream, len(core.in_flight)) == ("m", 1, False, 3)
            assert core.in_flight.cancel_numbered(third.number)
            assert not core.in_flight.cancel_numbered(third.number)
        assert ended == ["c cancelled", "a", "b"]
        assert (core.in_flight.listed(), len(core.in_flight)) == ([], 0)
        assert not core.in_flight.cancel_numbered(first.number)
        core.stop()
