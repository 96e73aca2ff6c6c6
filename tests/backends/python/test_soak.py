"""Many requests, and what is left of them: memory, descriptors, segments.

TRIOTON_SOAK_REQUESTS says how many (100000 takes some minutes), TRIOTON_SOAK_BATCH how many of them are together at
most; a few in an ordinary run.
"""

from __future__ import annotations

import gc
import itertools
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from backends.python import PythonBackend
from backends.python.workers.host import HostedFork
from backends.python.workers.process import WorkerProcess, resident_bytes
from tests.backends.python.models import (
    CONFIG,
    DECOUPLED,
    Receiver,
    backend,
    executing,
    infer,
    output,
    parameters,
    request,
    running,
)
from tests.backends.python.processes import children, open_descriptors, shared_memory_files

REQUESTS = int(os.environ.get("TRIOTON_SOAK_REQUESTS", "3000"))
LARGEST_BATCH = int(os.environ.get("TRIOTON_SOAK_BATCH", "3"))
# In one batch; inline, and in shared memory.
SIZES = (4, 1 << 10, 1 << 14, 1 << 18)
SETTINGS = {"allow-in-process": "true", "shm-limit-byte-size": str(8 << 20)}
# What the allocators may keep of what was freed: a few of the largest batches.
SLACK = 48 << 20

# Holds the inputs of the last batch, so that segments are replaced; answers with more than it got.
ANSWERS = executing("""
    self.held = [r.inputs()[0].as_numpy() for r in requests]
    return [answer(np.concatenate([x, x], axis=1)) for x in self.held]
""")
STREAMS = executing("""
    for request in requests:
        sender = request.get_response_sender()
        array = request.inputs()[0].as_numpy()
        for _ in range(3):
            sender.send(answer(array))
        sender.send(flags=FINAL)
""")


def made(directory: Path, text: str, mode: str, *, is_decoupled: bool) -> PythonBackend:
    base = DECOUPLED if is_decoupled else CONFIG
    config = msgspec.structs.replace(base, parameters=parameters(ISOLATION=mode))
    return backend(directory, text, config=config, settings=SETTINGS)


async def some(instance: PythonBackend, count: int, *, is_decoupled: bool) -> None:
    """Batches of one and of several, of all sizes, one after the other."""
    arrays = [np.ones((1, size), np.float32) for size in SIZES]
    weights = [0] * 40 + [1] * 20 + [2] * 4 + [3]  # most are small
    done = turn = 0
    while done < count:
        array = arrays[weights[turn % len(weights)]]
        together = [request(array) for _ in range(1 + turn % LARGEST_BATCH)]
        turn += 1
        done += len(together)
        if is_decoupled:
            receivers = [Receiver() for _ in together]
            await instance.execute_decoupled(together, receivers)
            for receiver in receivers:
                await receiver.ended.wait()
                assert (len(receiver.responses), receiver.error) == (3, None)
        else:
            for answer in await infer(instance, *together):
                assert output(answer).shape[1] == 2 * array.shape[1]


def segments(pid: int) -> int:
    """The anonymous files that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:trioton")


@pytest.mark.parametrize(
    ("mode", "is_decoupled"),
    [*itertools.product(["process", "threads", "fork", "in_process"], [False, True]), ("in_loop", False)],
)
async def test_nothing_is_left_of_many_requests(tmp_path: Path, mode: str, is_decoupled: bool) -> None:
    """After the first tenth everything has its size."""
    before = shared_memory_files(os.getpid())
    instance = made(tmp_path, STREAMS if is_decoupled else ANSWERS, mode, is_decoupled=is_decoupled)
    async with running(instance):
        assert instance._loaded is not None
        runner = instance._loaded.link.runner
        worker = runner.pid if isinstance(runner, WorkerProcess | HostedFork) else (children() or [os.getpid()])[0]
        await some(instance, REQUESTS // 10, is_decoupled=is_decoupled)
        gc.collect()
        memory = {pid: resident_bytes(pid) or 0 for pid in {os.getpid(), worker}}
        descriptors = open_descriptors()
        await some(instance, REQUESTS, is_decoupled=is_decoupled)
        gc.collect()
        grown = {pid: (resident_bytes(pid) or 0) - size for pid, size in memory.items()}
        print(f"{mode}, decoupled {is_decoupled}: {REQUESTS} requests, grown by {[*grown.values()]} bytes")
        assert all(size < SLACK for size in grown.values()), grown
        assert len(open_descriptors() - descriptors) <= 1
        assert segments(worker) <= 8, "two of each direction, which two ends may have mapped"
        assert shared_memory_files(os.getpid(), *children()) == before
