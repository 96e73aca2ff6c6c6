"""The process of a worker: how it ends, what it printed, and that it is gone."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from backends.python.environments.environment import Environment
from backends.python.workers.process import WorkerProcess
from protocol.log.tags import TaggedLog
from tests.backends.python.processes import children, open_descriptors

Start = Callable[[str], WorkerProcess]
LOG = TaggedLog(logging.getLogger("trioton.model.test"), {})


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a shell script in place of an interpreter; all is closed afterwards, and nothing may be left."""
    started: list[WorkerProcess] = []
    before = open_descriptors()

    def start_script(text: str) -> WorkerProcess:
        script = tmp_path / f"script{len(started)}"
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = WorkerProcess(Environment(str(script), dict(os.environ)), theirs, LOG, "m_0")
        started.append(process)
        return process

    yield start_script
    for process in started:
        await process.close()
    assert not children()
    assert not open_descriptors() - before


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("exit 0", "exited with code 0"),
        ("exit 7", "exited with code 7"),
        ("kill -SEGV $$", "was killed by SIGSEGV"),
        ("kill -40 $$", "was killed by signal 40"),
    ],
)
async def test_how_a_process_ended(start: Start, script: str, text: str) -> None:
    """Before it is reaped and after; any number of tasks may wait for it."""
    process = start(f"sleep 0.05\n{script}")
    assert process.exit_text() is None
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(process.wait_exit)
    assert process.exit_text() == text
    await process.wait_exit()
    await process.close()
    assert process.exit_text() == text


async def test_waiting_without_pidfd(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems that have none."""
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    process = start("sleep 0.05; exit 3")
    await process.wait_exit()
    assert process.exit_text() == "exited with code 3"


async def test_a_kill_ends_it_once(start: Start) -> None:
    process = start("sleep 1000")
    process.kill()
    process.kill()
    await process.wait_exit()
    assert process.exit_text() == "was killed by SIGKILL"
    await process.close()
    process.kill()


async def test_what_it_prints_is_logged_by_line(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """What is no text is shown all the same; a line without end is cut; empty ones are left out."""
    caplog.set_level(logging.INFO)
    process = start(
        "printf 'one\\r\\n\\n\\377two\\nthr'; sleep 0.05; printf 'ee\\n'; head -c 100000 /dev/zero | tr '\\0' x"
    )
    await process.forward_output(dict)
    texts = [message.removeprefix("m_0: ") for message in caplog.messages]
    assert texts[:3] == ["one", "\ufffdtwo", "three"]
    assert "".join(texts[3:]) == "x" * 100_000
    assert max(map(len, texts)) == 8192


async def test_a_line_belongs_to_whatever_runs_when_it_is_read(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """But for those that are read late, when it may be another request that runs."""
    caplog.set_level(logging.INFO)
    process = start("echo one; sleep 0.05; seq 1 40000")
    names = iter(["a", "a", *["b"] * 100])
    await process.forward_output(lambda: {"request_id": next(names)})
    found = {record.body: vars(record)["tags"] for record in caplog.records}  # type: ignore[attr-defined]
    assert len(found) == 40_001
    assert found["one"] == {"request_id": "a"}
    assert found["40000"] in ({}, {"request_id": "b"})
    assert {} in found.values()


async def test_lines_that_wait_are_logged_when_it_has_ended(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Also by a task that has been cancelled."""
    caplog.set_level(logging.INFO)
    process = start("seq 1 10000")
    await process.wait_exit()
    with trio.CancelScope() as scope:
        scope.cancel()
        await process.log_last_output(dict)
    assert [message.removeprefix("m_0: ") for message in caplog.messages] == [str(each) for each in range(1, 10001)]


async def test_its_last_lines_are_kept(start: Start) -> None:
    process = start("seq 1 50; printf unfinished")
    await process.wait_exit()
    await process.log_last_output(dict)
    assert process.tail == [*(str(number) for number in range(32, 51)), "unfinished"]


async def test_one_that_prints_without_end_lets_others_work(start: Start) -> None:
    process = start("exec yes")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.forward_output, dict)
        while len(process.tail) < 20:
            await trio.lowlevel.checkpoint()
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
