"""A core and an edge in two processes: what is left when either is killed in the middle of load."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import trio

from protocol.core import InferenceCore
from protocol.edge_link.link_server import LinkServer
from protocol.edge_link.linked_core import LinkedCore
from protocol.errors import ServerError, Unavailable
from protocol.messages import InferenceRequest, Tensor
from tests.protocol.edge_link.scripted_core import ScriptedCore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs memfds and /proc")
# In one process or the other: what is asked for without end.
SIZES = (8, 30_000, 400_000)


async def load(core: InferenceCore, size: int) -> None:
    tensor = Tensor.from_numpy("IN", np.zeros(size, np.uint8))
    while True:
        answer = await core.infer(InferenceRequest("m", [tensor]))
        assert answer.outputs[0].byte_size == size


async def edge(descriptor: int) -> None:
    """The program of the edge's process. It says once that its load runs, and how its core has ended."""
    core = LinkedCore(socket.socket(fileno=descriptor))
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        assert core.is_batching("m")
        for size in (*SIZES, *SIZES):
            nursery.start_soon(until_gone, core, size)
        await core.infer(InferenceRequest("m", []))
        print("runs", flush=True)
    print("ended", flush=True)


async def until_gone(core: LinkedCore, size: int) -> None:
    with pytest.raises(Unavailable, match="Server exiting"):
        await load(core, size)


async def core(descriptor: int) -> None:
    """The program of the core's process."""
    async with trio.open_nursery() as nursery:
        await nursery.start(LinkServer(cast(InferenceCore, ScriptedCore()), socket.socket(fileno=descriptor)).run)
        print("runs", flush=True)


@asynccontextmanager
async def process(program: str, control: socket.socket) -> AsyncIterator[trio.Process]:
    command = [sys.executable, "-m", __name__, program, str(control.fileno())]
    found = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, pass_fds=[control.fileno()])
    control.close()
    try:
        yield found
    finally:
        with trio.CancelScope(shield=True):
            found.kill()
            await found.wait()


async def line(found: trio.Process) -> bytes:
    assert found.stdout is not None
    data = b""
    while not data.endswith(b"\n"):
        more = await found.stdout.receive_some()
        if not more:
            break
        data += more
    return data


def memory_files() -> int:
    """Segments that this process has mapped, but for those that only garbage holds, of other tests too."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:trioton-edge")


async def test_an_edge_that_is_killed_leaves_nothing_in_the_core() -> None:
    mapped, descriptors = memory_files(), len(os.listdir("/proc/self/fd"))
    scripted = ScriptedCore()
    ours, theirs = socket.socketpair()
    server = LinkServer(cast(InferenceCore, scripted), ours)
    with trio.fail_after(60):
        async with process("edge", theirs) as found, trio.open_nursery() as nursery:
            await nursery.start(server.run)
            assert await line(found) == b"runs\n"
            assert memory_files() > mapped
            scripted.holds = True
            while len(scripted.open) < 6:  # its requests come by callbacks, which wake nobody
                await trio.lowlevel.checkpoint()
            found.send_signal(signal.SIGKILL)
        assert scripted.open == []
    assert server.in_flight == 0
    assert server.problem == ""
    scripted.submitted.clear()
    scripted.unflushed.clear()
    assert memory_files() <= mapped
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 3, "those of the poller, which lives as long as the run"


async def test_edges_end_when_the_core_is_killed() -> None:
    mapped = memory_files()
    ours, theirs = socket.socketpair()
    with trio.fail_after(60):
        async with process("core", ours) as found:
            assert await line(found) == b"runs\n"
            linked = LinkedCore(theirs)
            ends: list[ServerError] = []

            async def until_end(size: int) -> None:
                try:
                    await load(linked, size)
                except ServerError as error:
                    ends.append(error)

            async with trio.open_nursery() as nursery:
                await nursery.start(linked.run)
                for size in SIZES:
                    nursery.start_soon(until_end, size)
                assert linked.is_batching("m")
                await linked.infer(InferenceRequest("m", []))
                found.send_signal(signal.SIGKILL)
    assert [type(error) for error in ends] == [Unavailable] * len(SIZES)
    ends.clear()
    assert memory_files() <= mapped


async def test_an_edge_ends_by_itself_when_its_core_is_killed() -> None:
    """Seen from the edge's process, which has load under way."""
    ours, theirs = socket.socketpair()
    with trio.fail_after(60):
        async with process("edge", theirs) as edge_process, process("core", ours) as core_process:
            assert await line(core_process) == b"runs\n"
            assert await line(edge_process) == b"runs\n"
            core_process.send_signal(signal.SIGKILL)
            assert await line(edge_process) == b"ended\n"
            assert await edge_process.wait() == 0


async def test_queries_wait_no_longer_than_they_may() -> None:
    """A core that is stopped, and goes on later: what it says then is not taken for the answer to something else."""
    ours, theirs = socket.socketpair()
    with trio.fail_after(60):
        async with process("core", ours) as found:
            assert await line(found) == b"runs\n"
            linked = LinkedCore(theirs)
            async with trio.open_nursery() as nursery:
                await nursery.start(linked.run)
                linked.queries.seconds = 0.2
                found.send_signal(signal.SIGSTOP)
                with pytest.raises(Unavailable, match=r"has not answered within 0\.2 s"):
                    linked.is_batching("m")
                found.send_signal(signal.SIGCONT)
                linked.queries.seconds = 30.0
                assert linked.cancel("m", "x") == 0
                assert linked.is_batching("m") is True
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run({"edge": edge, "core": core}[sys.argv[1]], int(sys.argv[2]))
