"""A replica of Ray Serve with a real server, and a place that is no cluster."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.repository import copy_python_model
from trioton.fleet.driver import Address
from trioton.ray.entries import Entry
from trioton.ray.options import ServerOptions
from trioton.ray.replica import Replica, command_of, models_of
from trioton.ray.server_process import ServerFailed

slow = pytest.mark.slow
MODEL = "completed"


class LonePlace:
    """Remembers what the directory would."""

    def __init__(self) -> None:
        self.node, self.application, self.host = "node", "application", "127.0.0.1"
        self.entries: dict[str, Entry] = {}
        self.leaving: list[str] = []
        self.given_up = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def report(self, entry: Entry) -> None:
        self.entries[entry.replica] = entry

    def leave(self, replica: str) -> None:
        self.leaving.append(replica)

    def remove(self, replica: str) -> None:
        self.entries.pop(replica, None)

    def give_up(self) -> None:
        self._loop.call_soon_threadsafe(self.given_up.set)


@asynccontextmanager
async def replica(**options: Any) -> AsyncIterator[tuple[Replica, LonePlace]]:
    place = LonePlace()
    parsed = ServerOptions.parse({"drain_secs": 0, "exit_timeout_secs": 5, "start_timeout_secs": 60, **options})
    made = Replica(parsed, place, 0.05)
    await made.start()
    try:
        yield made, place
    finally:
        await made.stop()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    copy_python_model(MODEL, tmp_path)
    copy_python_model("python_types", tmp_path)
    return tmp_path


@slow
def test_its_life(models: Path) -> None:
    async def live() -> None:
        flags = {"model-repository": str(models), "model-control-mode": "explicit"}
        async with replica(flags=flags) as (server, place):
            (entry,) = place.entries.values()
            assert entry == server.entry()
            await server.check()
            assert await server.figures() == {"queue": 0.0, "in_flight": 0.0, "p99_ms": 0.0}
            await server.load_only([MODEL])
            assert await ready(server) == {MODEL}
            await server.load_only(["python_types"])
            assert await ready(server) == {"python_types"}
            with pytest.raises(ServerFailed, match="could not load model 'absent': 4"):
                await server.load_only(["absent", "python_types"])
            assert await ready(server) == {"python_types"}
        assert place.leaving == [entry.replica]
        assert place.entries == {}
        assert not place.given_up.is_set()
        with pytest.raises(ServerFailed, match="the server has ended"):
            await server.check()

    asyncio.run(live())


async def ready(server: Replica) -> set[str]:
    process = server._server()
    answers = {
        name: await asyncio.to_thread(process.get, f"/v2/models/{name}/ready") for name in (MODEL, "python_types")
    }
    return {name for name, answer in answers.items() if answer.status == 200}


@slow
def test_one_whose_server_dies_gives_up(models: Path) -> None:
    async def live() -> None:
        async with replica(flags={"model-repository": str(models)}) as (server, place):
            os.kill(server._server().pid, signal.SIGKILL)
            await place.given_up.wait()
            assert place.entries == {}
            with pytest.raises(ServerFailed, match="the server has ended: killed by SIGKILL"):
                await server.check()
            assert await server.figures() == {"queue": 0.0, "in_flight": 0.0, "p99_ms": 0.0}

    asyncio.run(live())


@slow
def test_one_whose_server_does_not_start(tmp_path: Path) -> None:
    async def live() -> None:
        async with replica(flags={"model-repository": str(tmp_path / "absent")}):
            pass

    with pytest.raises(ServerFailed, match=r"ended before it was ready: exit code 1.*(\n.*)*absent"):
        asyncio.run(live())


def test_its_command() -> None:
    options = ServerOptions.parse({"command": ["x", "serve"], "flags": ["--id=a"], "drain_secs": 3})
    command = command_of(options, Address("10.0.0.1", 1, 2, 3))
    assert command[:3] == ["x", "serve", "--id=a"]
    for word in ("--http-address=10.0.0.1", "--http-port=1", "--grpc-port=2", "--metrics-port=3", "--drain-secs=3"):
        assert word in command


def test_models_of_a_user_config() -> None:
    assert models_of({}) == []
    assert models_of({"models": ["a", "b", "a"]}) == ["a", "b"]
    with pytest.raises(ValueError, match=r"takes 'models' only, got \[\"load\"\]"):
        models_of({"load": ["a"]})
    for wrong in ("a", [1], [""]):
        with pytest.raises(ValueError, match="'models' of user_config is a list of names"):
            models_of({"models": wrong})
