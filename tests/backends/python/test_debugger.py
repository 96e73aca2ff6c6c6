"""Debugging a model in its worker: `breakpoint()` over a socket, and a worker that waits for debugpy."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from backends.python.settings import PythonSettings
from protocol.errors import InvalidArgument, ServerError
from tests.backends.python.models import (
    CONFIG,
    IDENTITY,
    backend,
    executing,
    infer,
    model_source,
    output,
    parameters,
    request,
    running,
)

PDB = {"debugger": "pdb"}
STOPPING = """
factor = 1
breakpoint()
return [answer(factor * r.inputs()[0].as_numpy()) for r in requests]
"""


async def address(caplog: pytest.LogCaptureFixture, pattern: str) -> tuple[str, int, str]:
    """Where a worker listens, as soon as its log says so, and the log until then."""
    while (found := re.search(pattern, caplog.text)) is None:  # noqa: ASYNC110 (a log has no event)
        await trio.sleep(0.01)
    log = caplog.text
    caplog.clear()
    return found.group(1), int(found.group(2)), log


async def person(caplog: pytest.LogCaptureFixture, *words: str) -> str:
    """Type these when a breakpoint opens its port, and leave; answers what was shown."""
    host, port, _ = await address(caplog, r"connect with: nc (\S+) (\d+)")
    shown = b""
    async with await trio.open_tcp_stream(host, port) as stream:
        for word in words:
            while not shown.endswith(b"(Pdb) "):
                shown += await stream.receive_some()
            await stream.send_all(word.encode() + b"\n")
            shown += b"\n"
    return shown.decode()


@asynccontextmanager
async def asked(instance: object, outcomes: list[object]) -> AsyncIterator[None]:
    """One request under way while the block runs, and answered at its end."""

    async def ask() -> None:
        try:
            outcomes.extend(await infer(instance, request((2.0,))))  # type: ignore[arg-type]  # a PythonBackend
        except ServerError as error:
            outcomes.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        yield


async def test_a_breakpoint_opens_a_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The person sees the model's frame and changes what it computes; the connection's end lets the model go on."""
    caplog.set_level("INFO")
    async with running(backend(tmp_path, executing(STOPPING), settings=PDB)) as instance:
        for _ in range(2):
            outcomes: list[object] = []
            async with asked(instance, outcomes):
                shown = await person(caplog, "p requests[0].request_id()", "factor = 21")
            assert f"{tmp_path / '1' / 'model.py'}" in shown
            [answer] = outcomes
            assert output(answer).tolist() == [[42.0]]  # type: ignore[arg-type]  # a response, or it fails here


async def test_quitting_fails_the_batch_and_not_the_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running(backend(tmp_path, executing(STOPPING), settings=PDB)) as instance:
        outcomes: list[object] = []
        async with asked(instance, outcomes):
            await person(caplog, "q")
        assert "BdbQuit" in str(outcomes[0])
        outcomes.clear()
        async with asked(instance, outcomes):
            await person(caplog, "c")
        assert not isinstance(outcomes[0], ServerError)


async def test_finalize_may_be_looked_at_for_as_long_as_one_likes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits of finalize do not hold while a model is debugged."""
    caplog.set_level("INFO")
    monkeypatch.setattr("backends.python.workers.link.FINALIZE_SECONDS", 0.0)
    model = executing(IDENTITY) + "    def finalize(self):\n        breakpoint()\n        print('finalized')\n"
    instance = backend(tmp_path, model, settings=PDB)
    await instance.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(instance.unload)
        await person(caplog, "p 6 * 7")
    assert "m_0: finalized" in caplog.text
    assert "is killed" not in caplog.text


async def test_a_breakpoint_without_a_debugger(tmp_path: Path) -> None:
    """A worker has no terminal: the batch fails, nothing waits."""
    async with running(backend(tmp_path, executing(STOPPING))) as instance:
        outcomes: list[object] = []
        async with asked(instance, outcomes):
            pass
        assert "BdbQuit" in str(outcomes[0])


DEBUGPY = """
def listen(address):
    if address[1] == 5700:
        raise RuntimeError("taken")
    return address

def wait_for_client():
    import socket
    with socket.create_server(("127.0.0.1", 0)) as server:
        print("test listens at", *server.getsockname())
        server.accept()[0].close()
"""


async def test_a_worker_waits_for_debugpy_before_it_initializes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for debugpy: the port is the next one that is free, and the load waits for the person."""
    caplog.set_level("INFO")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "debugpy.py").write_text(DEBUGPY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"), prepend=os.pathsep)
    config = msgspec.structs.replace(CONFIG, parameters=parameters(DEBUGGER="debugpy:5700"))
    instance = backend(tmp_path, executing(IDENTITY), config=config)
    async with trio.open_nursery() as nursery:
        loaded = trio.Event()

        async def load() -> None:
            await instance.load()
            loaded.set()

        nursery.start_soon(load)
        host, port, log = await address(caplog, r"test listens at (\S+) (\d+)")
        assert "waiting for a debugger to attach at 127.0.0.1:5701" in log
        assert not loaded.is_set()
        async with await trio.open_tcp_stream(host, port):
            await loaded.wait()
    await instance.unload()


@pytest.mark.parametrize("given", ["gdb", "pdb:1", "debugpy:x", "debugpy:"])
def test_what_is_no_debugger_is_refused(tmp_path: Path, given: str) -> None:
    source = model_source(tmp_path, executing(IDENTITY), settings={"debugger": given})
    with pytest.raises(InvalidArgument, match=f"debugger: expected pdb, debugpy or debugpy:<port>, got '{given}'"):
        PythonSettings.of(source)


@pytest.mark.parametrize("isolation", ["threads", "fork"])
def test_a_debugger_needs_a_process_for_each_instance(tmp_path: Path, isolation: str) -> None:
    config = msgspec.structs.replace(CONFIG, parameters=parameters(ISOLATION=isolation))
    source = model_source(tmp_path, executing(IDENTITY), config=config, settings=PDB)
    with pytest.raises(InvalidArgument, match=f"ISOLATION is {isolation}; expected process"):
        PythonSettings.of(source)


async def test_a_client_sees_the_model_s_lines_and_no_library_s(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has them all."""
    async with running(backend(tmp_path, executing("import json\njson.loads('{')"))) as instance:
        with pytest.raises(ServerError) as raised:
            await infer(instance, request())
    path = tmp_path / "1" / "model.py"
    told = raised.value.message
    assert "JSONDecodeError: Expecting property name" in told
    assert re.search(rf"\n\nAt:\n  {re.escape(str(path))}\(\d+\): execute\n$", told)
    assert "decoder.py" in caplog.text
