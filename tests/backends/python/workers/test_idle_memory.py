"""Memory that large batches have left is given back when the worker is idle, and not before."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import trio

from backends.python import PythonBackend
from backends.python.wire.arena import Segment
from backends.python.workers import idle_memory
from protocol.messages import InferenceRequest
from tests.backends.python.models import IDENTITY, ClientMemory, backend, executing, infer, output, request, running
from tests.backends.python.processes import until

ELEMENTS = 16 << 20  # 64 MiB
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_memory, "IDLE_SECONDS", 0.05)


def shared_bytes() -> int:
    """What the segments of this process hold, which are the worker's too."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(link).startswith("/memfd:trioton"):
                found += os.stat(link).st_blocks * 512
        except OSError:  # closed meanwhile
            continue
    return found


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


DOUBLES = executing("""
    if requests[0].request_id() == "pid":
        return [answer(np.array([[os.getpid()]], np.int32))]
    return [answer(r.inputs()[0].as_numpy() * 2) for r in requests]
""")


async def large(instance: PythonBackend, value: float) -> None:
    [response] = await infer(instance, request(np.full((1, ELEMENTS), value, np.float32)))
    array = output(response)
    assert (array[0, 0], array[0, -1], array.shape) == (2 * value, 2 * value, (1, ELEMENTS))


async def test_all_of_it_is_given_back_and_the_next_batch_finds_its_place(tmp_path: Path) -> None:
    """Of both sides: segments, and the worker's heap."""
    async with running(backend(tmp_path, DOUBLES)) as instance:
        pid = int(output((await infer(instance, request(id="pid")))[0]).item())
        for value in (1.0, 2.0, 3.0):
            await large(instance, value)
            assert shared_bytes() >= 64 * MIB
            await until(lambda: not shared_bytes())
            await until(lambda: resident(pid) < 64 * MIB)


async def test_what_is_read_stays(tmp_path: Path) -> None:
    """An answer that is still being sent; once it is dropped its memory goes as well."""
    async with running(backend(tmp_path, DOUBLES)) as instance:
        responses = await infer(instance, request(np.full((1, ELEMENTS), 5.0, np.float32)))
        await until(lambda: shared_bytes() <= 64 * MIB)  # the inputs went
        await trio.sleep(0.2)
        assert (output(responses[0]) == 10.0).all()
        responses.clear()
        await until(lambda: not shared_bytes())


async def test_nothing_is_given_back_while_a_batch_runs(tmp_path: Path) -> None:
    go = tmp_path / "go"
    model = executing(f"""
        while not os.path.exists({str(go)!r}):
            time.sleep(0.01)
        {IDENTITY}
    """)
    async with running(backend(tmp_path, model)) as instance, trio.open_nursery() as nursery:
        found: list[float] = []

        async def call() -> None:
            [response] = await infer(instance, request(np.full((1, ELEMENTS), 7.0, np.float32)))
            found.append(float(output(response).min()))

        nursery.start_soon(call)
        await until(lambda: shared_bytes() >= 64 * MIB)
        await trio.sleep(0.3)
        assert shared_bytes() >= 64 * MIB
        go.touch()
    assert found == [7.0]


async def test_inputs_that_a_model_keeps_are_its_own(tmp_path: Path) -> None:
    model = executing("""
        if requests[0].request_id() == "keep":
            TritonPythonModel.kept = requests[0].inputs()[0].as_numpy()
            return [answer(np.zeros((1, 1), np.float32))]
        return [answer(np.array([[self.kept.min()]], np.float32))]
    """)
    async with running(backend(tmp_path, model)) as instance:
        await infer(instance, request(np.full((1, ELEMENTS), 9.0, np.float32), id="keep"))
        await large_and_gone(instance)
        assert output((await infer(instance, request()))[0]).item() == 9.0


async def large_and_gone(instance: PythonBackend) -> None:
    """One more large batch, and all that it left is given back."""
    asked = InferenceRequest("m", [ClientMemory.tensor("IN", np.ones((1, ELEMENTS), np.float32))])
    await infer(instance, asked)
    await until(lambda: not shared_bytes())


async def test_batches_that_come_meanwhile_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever they come: while it is given back, just before, just after."""
    monkeypatch.setattr(idle_memory, "IDLE_SECONDS", 0.001)
    async with running(backend(tmp_path, DOUBLES)) as instance:
        for turn in range(60):
            array = np.full((1, 1 << 20), turn, np.float32)
            [response] = await infer(instance, request(array))
            assert (output(response) == 2 * turn).all()
            del response
            await trio.sleep(0.0005 * (turn % 7))


async def test_a_system_that_takes_nothing_back_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(segment: Segment, start: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(Segment, "release", refuse)
    async with running(backend(tmp_path, DOUBLES)) as instance:
        await large(instance, 1.0)
        await until(lambda: "does not take it back" in caplog.text)
        await large(instance, 2.0)
        assert shared_bytes() >= 64 * MIB
    assert caplog.text.count("does not take it back") == 1
