"""Threads and processes stay on the cores that they are bound to, and nobody else is moved."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import trio

from backends.affinity import bind_thread, bound_children, usable_cores
from backends.instance_thread import InstanceThread

pytestmark = pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores to choose from")


@pytest.fixture
def core() -> int:
    return max(usable_cores())


async def test_an_instance_thread_and_what_it_starts(core: int) -> None:
    before = usable_cores()
    thread = InstanceThread("bound", frozenset({core}))
    assert await thread.run(os.sched_getaffinity, 0) == {core}
    child = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
    told = await thread.run(subprocess.check_output, child)
    assert told.split() == [str(core).encode()]
    await thread.aclose()
    assert usable_cores() == before
    free = InstanceThread("free")
    assert await free.run(os.sched_getaffinity, 0) == before
    await free.aclose()


def test_children_of_a_block(core: int) -> None:
    before = usable_cores()
    command = [sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))"]
    with bound_children({core}):
        bound = subprocess.check_output(command)
    free = subprocess.check_output(command)
    assert bound.split() == [str(core).encode()]
    assert free.split() == [str(each).encode() for each in sorted(before)]
    assert usable_cores() == before


async def test_cores_that_are_gone_bind_nobody(caplog: pytest.LogCaptureFixture) -> None:
    before = usable_cores()
    await trio.to_thread.run_sync(bind_thread, {1023})
    assert "cannot bind to CPU cores [1023]" in caplog.text
    assert usable_cores() == before
