"""Forked processes: the wait for one's end is woken by its own end, and by nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from backends.python.workers.forked_process import ForkedProcess
from backends.python.workers.host import Host, HostedThread

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


async def test_closing_twice_at_once_closes_its_descriptor_once() -> None:
    process = _sleeping()
    forked = ForkedProcess(process.pid, os.pidfd_open(process.pid), _reap)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(forked.close)
        nursery.start_soon(forked.close)
    process.wait()
    assert forked.is_closed


class _Process:
    """What a hosted thread needs of its host's process: it ends when it is killed."""

    def __init__(self) -> None:
        self._ended = trio.Event()

    def exit_text(self) -> str | None:
        return "was killed" if self._ended.is_set() else None

    async def wait_exit(self) -> None:
        await self._ended.wait()

    def kill(self) -> None:
        self._ended.set()


class _Host:
    def __init__(self, write_end: int) -> None:
        self.process = _Process()
        self.left = 0
        self._write_end = write_end

    async def leave(self) -> None:
        await trio.lowlevel.checkpoint()
        os.close(self._write_end)
        self.left += 1


async def test_closing_a_hosted_thread_twice_at_once_closes_its_descriptor_once() -> None:
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    host = _Host(write_end)
    hosted = HostedThread(cast(Host, host), read_end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hosted.close)
        nursery.start_soon(hosted.close)
    assert host.left == 1
