"""Forked processes: the wait for one's end is woken by its own end, and by nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from backends.python.workers.forked_process import ForkedProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pidfds are Linux's")


def _sleeping() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], start_new_session=True)


async def _reap(pid: int) -> None:
    await trio.lowlevel.checkpoint()


async def test_the_end_of_one_process_is_not_taken_for_another_ones() -> None:
    """A wait that was given up leaves its descriptor's number free for the next one, which must not hear of it."""
    ending, living = _sleeping(), _sleeping()
    processes = [ForkedProcess(each.pid, os.pidfd_open(each.pid), _reap) for each in (ending, living)]
    over: list[str] = []

    async def wait() -> None:
        await processes[1].wait_exit()
        over.append("living")

    try:
        with trio.CancelScope() as given_up:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(processes[0].wait_exit)
                await wait_all_tasks_blocked()
                given_up.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            ending.kill()
            ending.wait()
            await wait_all_tasks_blocked(0.05)
            assert over == []
            living.kill()
    finally:
        for each in (ending, living):
            each.kill()
            each.wait()
        for process in processes:
            os.close(process._descriptor)
    assert over == ["living"]
