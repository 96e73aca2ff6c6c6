"""Shared memory: what lies where, and that nothing of it stays, however a measurement ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest
import trio

from protocol.messages import Tensor
from tests.trioton.perf.data.models import slots
from trioton.perf.caller import DataError, Payload, TargetError
from trioton.perf.data import regions
from trioton.perf.data.region_slots import region_prefix
from trioton.perf.data.regions import SystemMemory

MODEL = slots(("A", "FP32", [3]), batch=4)


class Registry:
    """Implements the part of `Control` that knows of shared memory, as a server does."""

    def __init__(self) -> None:
        self.regions: dict[str, tuple[str, int]] = {}
        self.fails = ""
        self.hangs = False

    async def register_system_memory(self, name: str, key: str, byte_size: int) -> None:
        await trio.lowlevel.checkpoint()
        if self.fails and self.fails in name:
            raise TargetError("no")
        assert name not in self.regions
        self.regions[name] = (key, byte_size)

    async def unregister_system_memory(self, name: str) -> None:
        if self.hangs and name in self.regions:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        self.regions.pop(name, None)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return Registry()


def payload(*values: float) -> Payload:
    array = np.array([values], np.float32)
    return Payload(inputs=[Tensor.from_numpy("A", array)], inferences=1)


def exists(name: str) -> bool:
    try:
        memory = SharedMemory(name)
    except FileNotFoundError:
        return False
    memory.close()
    return True


async def test_inputs_lie_in_one_region_and_outputs_in_another(registry: Registry) -> None:
    payloads = [payload(1, 2, 3), payload(4, 5, 6)]
    async with SystemMemory().placed(payloads, MODEL, registry) as placed:  # type: ignore[arg-type]
        names = list(registry.regions)
        assert len(names) == 2
        for before, after in zip(payloads, placed, strict=True):
            region = after.input_regions["A"]
            key, size = registry.regions[region.name]
            memory = SharedMemory(key.removeprefix("/"))
            assert region.offset + region.byte_size <= size
            buffer: memoryview = memory.buf  # type: ignore[assignment]
            found = bytes(buffer[region.offset : region.offset + region.byte_size])
            memory.close()
            assert found == bytes(before.inputs[0].data)
            assert after.inputs[0].shape == (1, 3)
            assert not after.inputs[0].data
        first, second = (each.output_regions["OUT"] for each in placed)
        assert first.byte_size == 8  # one row of FP32 [2]
        assert second.offset >= first.offset + first.byte_size
    assert not registry.regions
    assert not any(map(exists, names))


async def test_without_outputs(registry: Registry) -> None:
    async with SystemMemory(has_outputs=False).placed([payload(1)], MODEL, registry) as placed:  # type: ignore[arg-type]
        assert len(registry.regions) == 1
        assert not placed[0].output_regions


@pytest.mark.parametrize("fails", ["_in", "_out"])
async def test_a_server_that_does_not_take_it(registry: Registry, fails: str) -> None:
    registry.fails = fails
    with pytest.raises(TargetError):
        async with SystemMemory().placed([payload(1)], MODEL, registry):  # type: ignore[arg-type]
            pytest.fail("the region was not registered")
    assert not registry.regions


async def test_cancelled_in_the_middle(registry: Registry) -> None:
    with trio.CancelScope() as scope:
        async with SystemMemory().placed([payload(1)], MODEL, registry):  # type: ignore[arg-type]
            names = list(registry.regions)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert not registry.regions
    assert not any(map(exists, names))


async def test_a_server_that_no_longer_answers(
    registry: Registry, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with SystemMemory().placed([payload(1)], MODEL, registry):  # type: ignore[arg-type]
        names = list(registry.regions)
        registry.hangs = True
    assert not any(map(exists, names))
    assert caplog.text.count("may still be registered") == 2


async def test_what_a_killed_process_has_left_is_taken_back(registry: Registry) -> None:
    async with SystemMemory().placed([payload(1)], MODEL, registry):  # type: ignore[arg-type]
        names = list(registry.regions)
    for name in names:
        SharedMemory(name, create=True, size=4096).close()
        registry.regions[name] = (f"/{name}", 4096)
    async with SystemMemory().placed([payload(1)], MODEL, registry):  # type: ignore[arg-type]
        assert sorted(registry.regions) == sorted(names)
    assert not any(map(exists, names))


async def test_a_size_beyond_all_bounds(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "MAX_REGION_BYTES", 100)
    with pytest.raises(DataError, match="more than 100 bytes"):
        async with SystemMemory().placed([payload(1), payload(2)], MODEL, registry):  # type: ignore[arg-type]
            pytest.fail("too large")


def test_prefixes_of_living_users_differ(tmp_path: Path) -> None:
    with region_prefix(tmp_path) as first, region_prefix(tmp_path) as second:
        assert first != second
    with region_prefix(tmp_path) as again:
        assert again == first


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_no_memory(tmp_path: Path) -> None:
    """Python's resource tracker outlives it, and the lock of its slot does not."""
    code = f"""
        import tempfile, trio
        from pathlib import Path
        from tests.trioton.perf.data import test_regions as t
        tempfile.gettempdir = lambda: {str(tmp_path)!r}
        async def main():
            registry = t.Registry()
            async with t.SystemMemory().placed([t.payload(1)], t.MODEL, registry):
                print(*registry.regions, flush=True)
                await trio.sleep_forever()
        trio.run(main)
    """
    root = Path(__file__).parents[4]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        names = process.stdout.readline().split()
        assert len(names) == 2
        assert all((Path("/dev/shm") / name).exists() for name in names)
        process.send_signal(signal.SIGKILL)
        process.communicate()  # to the end of the tracker, which holds the same pipe
    assert not any((Path("/dev/shm") / name).exists() for name in names)
