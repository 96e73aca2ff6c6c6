"""Responses in the background: their life, what cancels them, and how many there may be."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from protocol.errors import InvalidArgument, Overloaded, Unavailable
from protocol.responses.background import MAX_BACKGROUND, Responses
from protocol.responses.event_log import EventLog
from protocol.responses.store import KeptResponse


class Run:
    """Runs until `go` is set; then it raises `error`, if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go = trio.Event()
        self.error = error

    async def run(self, kept: KeptResponse) -> None:
        await self.go.wait()
        if self.error is not None:
            raise self.error
        kept.answer = b"done"

    def cancelled(self, kept: KeptResponse) -> None:
        kept.answer = b"cancelled"


def make(name: str = "1", size: int = 0) -> KeptResponse:
    return KeptResponse(name, "a", b"x" * size, b"queued", EventLog())


@pytest.fixture
async def responses() -> AsyncIterator[Responses]:
    made = Responses(1 << 20)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.testing.wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()


async def test_it_runs_to_its_end(responses: Responses) -> None:
    run, kept = Run(), make()
    responses.begin(kept, run)
    assert responses.find("a", "1") is kept
    assert kept.is_running
    run.go.set()
    await trio.testing.wait_all_tasks_blocked()
    assert (kept.is_running, kept.is_background, kept.answer) == (False, True, b"done")
    assert kept.log is not None
    assert kept.log.is_over


async def test_cancelled(responses: Responses) -> None:
    kept = make()
    responses.begin(kept, Run())
    await responses.cancel(kept)
    assert (kept.is_running, kept.answer) == (False, b"cancelled")
    await responses.cancel(kept)
    assert responses.find("a", "1") is kept


async def test_removed(responses: Responses) -> None:
    kept = make()
    responses.begin(kept, Run())
    await trio.testing.wait_all_tasks_blocked()
    await responses.remove(kept)
    assert not kept.is_running
    assert responses.find("a", "1") is None


async def test_a_run_that_fails_ends_alone(responses: Responses, caplog: pytest.LogCaptureFixture) -> None:
    broken, other = Run(ValueError("oops")), Run()
    responses.begin(make("1"), broken)
    responses.begin(make("2"), other)
    with caplog.at_level(logging.CRITICAL):
        broken.go.set()
        await trio.testing.wait_all_tasks_blocked()
    found = responses.find("a", "1"), responses.find("a", "2")
    assert [kept is not None and kept.is_running for kept in found] == [False, True]


async def test_there_are_only_so_many(responses: Responses) -> None:
    for number in range(MAX_BACKGROUND):
        responses.begin(make(str(number)), Run())
    with pytest.raises(Overloaded, match="256 responses run in the background"):
        responses.begin(make("more"), Run())
    assert responses.find("a", "more") is None


async def test_they_hold_only_so_much(responses: Responses) -> None:
    for number in range(8):
        responses.begin(make(str(number), 60_000), Run())
    with pytest.raises(Overloaded, match="8 responses run in the background"):
        responses.begin(make("8", 60_000), Run())
    with pytest.raises(InvalidArgument, match="the response holds 71030 bytes, and at most 65536 are kept of one"):
        responses.begin(make("9", 70_000), Run())


async def test_stopped(responses: Responses) -> None:
    kept = make()
    responses.begin(kept, Run())
    responses.stop()
    await trio.testing.wait_all_tasks_blocked()
    assert (kept.is_running, kept.answer) == (False, b"cancelled")
    with pytest.raises(Unavailable):
        responses.begin(make("2"), Run())


async def test_nothing_runs_without_a_server() -> None:
    with pytest.raises(Unavailable):
        Responses().begin(make(), Run())
    ended = Responses()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ended.run)
        await trio.testing.wait_all_tasks_blocked()
        kept = make()
        ended.begin(kept, Run())
        nursery.cancel_scope.cancel()
    assert not kept.is_running
    with pytest.raises(Unavailable):
        ended.begin(make(), Run())
