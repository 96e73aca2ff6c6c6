"""The readiness probe of a worker that ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from backends.python.workers.readiness import Readiness


async def test_a_worker_that_has_ended_is_not_asked(autojump_clock: object, caplog: pytest.LogCaptureFixture) -> None:
    """Not even by who asks after that: nothing would answer, and the probe would wait for its time limit."""
    posted: list[Any] = []
    link: Any = SimpleNamespace(name="m_0", handlers={}, at_end=[], channel=SimpleNamespace(post=posted.append))
    readiness = Readiness(link)
    answers: list[bool] = []

    async def ask() -> None:
        answers.append(await readiness.check())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        for told in link.at_end:
            told()
    await ask()
    assert answers == [False, False]
    assert len(posted) == 1
    assert not caplog.records
