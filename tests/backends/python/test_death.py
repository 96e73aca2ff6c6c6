"""Workers that die, lie or are left alone: the caller always gets an answer, and nothing survives its server."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trio

from backends.interface import InstanceDied
from tests.backends.python.models import IDENTITY, backend, executing, infer, output, request, running
from tests.backends.python.processes import children, is_alive, until

SEGFAULT = "import ctypes; ctypes.string_at(0)"


@pytest.mark.parametrize(
    ("body", "how", "is_watched"),
    [
        ("os._exit(7)", "exited with code 7", True),
        ("os._exit(7)", "exited with code 7", False),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL", True),
        (SEGFAULT, "was killed by SIGSEGV", True),
        # A forked child keeps the socket open; the death is seen all the same.
        ("os.fork() and os._exit(9); time.sleep(1000)", "exited with code 9", True),
    ],
)
async def test_a_worker_that_dies_in_a_batch_fails_it(tmp_path: Path, body: str, how: str, is_watched: bool) -> None:
    instance = backend(tmp_path, executing(body))
    await instance.load()
    async with trio.open_nursery() as nursery:
        if is_watched:
            nursery.start_soon(instance.wait_died)
        for _ in range(2):  # and every later one
            with pytest.raises(InstanceDied) as death:
                await infer(instance, request(), request())
            assert death.value.message == f"model instance 'm_0' died: its worker process {how}"
        # wait_died has returned or does so now, or the nursery would not end
    await instance.unload()
    assert not children()


async def test_a_death_is_seen_while_the_instance_is_idle(tmp_path: Path) -> None:
    model = executing("return [answer(np.array([os.getpid()])) for _ in requests]")
    instance = backend(tmp_path, model)
    await instance.load()
    [response] = await infer(instance, request())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(instance.wait_died)
        await trio.testing.wait_all_tasks_blocked()
        os.kill(output(response).item(), signal.SIGKILL)
    with pytest.raises(InstanceDied, match="was killed by SIGKILL"):
        await infer(instance, request())
    await instance.unload()
    again = backend(tmp_path, executing(IDENTITY))
    async with running(again):
        assert output((await infer(again, request((3.0,))))[0]).tolist() == [[3.0]]


async def test_a_cancelled_batch_leaves_the_instance_usable(tmp_path: Path) -> None:
    """The next batch waits for the old one to end, and gets its own answer; also where nobody attends meanwhile."""
    go = tmp_path / "go"
    started = tmp_path / "started"
    model = executing(f"""
        if requests[0].request_id() == "slow":
            open({str(started)!r}, "w").close()
            while not os.path.exists({str(go)!r}):
                time.sleep(0.001)
        return [answer(r.inputs()[0].as_numpy()) for r in requests]
    """)
    for is_watched in (True, False):
        for size in (4, 1 << 16):
            instance = backend(tmp_path, model)
            await instance.load()
            async with trio.open_nursery() as nursery:
                if is_watched:
                    nursery.start_soon(instance.wait_died)
                async with trio.open_nursery() as calling:
                    calling.start_soon(infer, instance, request(np.zeros((1, size), np.float32), id="slow"))
                    await until(started.exists)
                    calling.cancel_scope.cancel()
                with trio.move_on_after(0):  # a second one that gives up before it is sent
                    await infer(instance, request())
                go.touch()
                for value in (1, 2):
                    [response] = await infer(instance, request(np.full((1, size), value, np.float32)))
                    assert (output(response) == value).all()
                nursery.cancel_scope.cancel()
            await instance.unload()
            go.unlink()
            started.unlink()


async def test_a_batch_cancelled_while_it_is_sent_is_sent_to_its_end(tmp_path: Path) -> None:
    """A stopped worker reads nothing, so a large frame gets stuck half-way."""
    model = executing("return [answer(r.inputs()[0].as_numpy()[:, :1] + os.getpid()) for r in requests]")
    array = np.zeros((1, 1 << 21), np.float64)
    async with running(backend(tmp_path, model, settings={"inline-tensors": "true"})) as instance:
        [response] = await infer(instance, request(array[:, :1]))
        pid = int(output(response).item())
        os.kill(pid, signal.SIGSTOP)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(infer, instance, request(array))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        finally:
            os.kill(pid, signal.SIGCONT)
        [response] = await infer(instance, request(array + 1))
        assert output(response).item() == pid + 1


async def test_a_model_that_prints_and_logs_without_end_stops_nobody(tmp_path: Path) -> None:
    model = executing("""
        import threading
        def flood():
            while True:
                print("x" * 1000)
                pb_utils.Logger.log_verbose("y" * 1000)
        threading.Thread(target=flood, daemon=True).start()
        return [answer(r.inputs()[0].as_numpy()) for r in requests]
    """)
    async with running(backend(tmp_path, model)) as instance:
        for _ in range(3):
            await infer(instance, request())
    assert not children()


LIES = {
    "no frame": "control.sendall(b'x' * 500)",
    "a broken head": "send(frames.EXECUTED, b'{', [1, 0, 0, 0])",
    "an unknown field": """send(frames.EXECUTED, b'{"x":1}', [1, 0, 0, 0])""",
    "no batch": "send(frames.EXECUTED, b'')",
    "no responses": "send(frames.EXECUTED, b'', [1, 0, 0, 0])",
    "a wrong kind": """send(frames.DONE, b'{}')""",
    "a length beyond all": "control.sendall(frames.PREFIX.pack(frames.MAGIC, frames.EXECUTED, 0, 0, 0, 1 << 60))",
    "memory that is not there": """send(frames.EXECUTED, b'', [1, 0, 4, 0, 16, 1], b'[["OUT",11,[1]]]')""",
    "a body that is not there": """send(frames.EXECUTED, b'', [1, 0, 0, 0, 16, 1], b'[["OUT",11,[1]]]')""",
    "places that are not there": "send(frames.EXECUTED, b'', [1, 0, 4, 1])",
    "two answers": """[send(frames.EXECUTED, b'', [1, 0, 0, 0, 2, 1], b'[]') for _ in "12"]""",
    "a broken log message": """send(frames.LOG, b'{"level":9,"message":"","filename":"","line":0}')""",
    "a closed socket": "control.shutdown(socket.SHUT_WR)",
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_worker_that_sends_nonsense_is_killed(tmp_path: Path, lie: str) -> None:
    model = executing(f"""
        import array, gc, socket
        from trioton_worker import frames
        control = next(o for o in gc.get_objects() if type(o) is socket.socket and o.family == socket.AF_UNIX)
        def send(kind, head, column=(), schemas=b""):
            control.sendall(frames.pack(kind, head, array.array("q", column).tobytes(), schemas))
        {LIES[lie]}
        time.sleep(1000)
    """)
    instance = backend(tmp_path, model)
    await instance.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(instance.wait_died)
        if lie == "two answers":  # the first may be taken before the second is there
            with suppress(InstanceDied):
                await infer(instance, request())
            await until(lambda: not any(map(is_alive, children())))
        with pytest.raises(InstanceDied) as death:
            await infer(instance, request())
        assert "was killed by " in death.value.message
    await instance.unload()
    assert not children()


LOCKED = "import ctypes; ctypes.PyDLL(None).pause()"

PARENT = """
import sys
from pathlib import Path

import trio

import msgspec
from tests.backends.python.models import CONFIG, backend, infer, parameters, request

async def main():
    config = msgspec.structs.replace(CONFIG, parameters=parameters(ISOLATION=sys.argv[3]))
    instance = backend(Path(sys.argv[1]), Path(sys.argv[2]).read_text(), config=config)
    await instance.load()
    await infer(instance, request())

trio.run(main)
"""


@pytest.mark.parametrize(
    ("before", "loop", "count", "mode"),
    [
        ("pass", "while True: pass", 1, "process"),
        # With a process that the model has forked.
        ("os.fork()", "while True: pass", 2, "process"),
        # Holds the interpreter's lock, so that no other thread of the worker can act.
        ("pass", LOCKED, 1, "process"),
        ("pass", LOCKED, 1, "threads"),
        # And the fork server that it was forked from.
        ("note(os.getppid())", "while True: pass", 2, "fork"),
        ("note(os.getppid())", LOCKED, 2, "fork"),
    ],
)
async def test_a_worker_does_not_survive_its_server(
    tmp_path: Path, before: str, loop: str, count: int, mode: str
) -> None:
    """The server is killed while the model is in an endless loop."""
    pid_file = tmp_path / "pid"
    text = tmp_path / "text"
    note = f"note = lambda pid: open({str(pid_file)!r}, 'a').write(str(pid) + '.')"
    text.write_text(executing(f"{note}\n{before}\nnote(os.getpid())\n{loop}"))
    server = await trio.lowlevel.open_process([sys.executable, "-c", PARENT, str(tmp_path), str(text), mode])
    try:
        await until(lambda: pid_file.exists() and pid_file.read_text().count(".") == count)
        workers = [int(pid) for pid in pid_file.read_text().split(".")[:-1]]
        assert all(map(is_alive, workers))
    finally:
        server.kill()
        await server.wait()
    await until(lambda: not any(map(is_alive, workers)))
