from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.lifecycle.freed_memory import LEAST_PAUSE_SECONDS, LEAST_SHARE, FreedMemory
from protocol.failures import CallbackFailures


class Collections:
    """Stands for the real ones; `seconds` is what each seems to take."""

    def __init__(self, patch: pytest.MonkeyPatch, seconds: float) -> None:
        self.count = 0
        self.with_frozen: list[bool] = []
        self._seconds = seconds
        self._now = 0.0
        patch.setattr("actors.lifecycle.freed_memory.return_free_memory", self._collect)
        patch.setattr("time.perf_counter", lambda: self._now)

    def _collect(self, has_frozen: bool) -> None:
        self.count += 1
        self.with_frozen.append(has_frozen)
        self._now += self._seconds

    async def reach(self, count: int) -> None:
        while self.count < count:
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked(0.01)


@asynccontextmanager
async def opened(failures: CallbackFailures | None = None) -> AsyncIterator[FreedMemory]:
    async with trio.open_nursery() as nursery:
        freed = FreedMemory(nursery, failures or CallbackFailures())
        yield freed
        freed.close()


@pytest.mark.parametrize(("seconds", "pause"), [(0.001, LEAST_PAUSE_SECONDS), (0.1, LEAST_SHARE * 0.1)])
async def test_unloads_soon_after_one_another_share_a_collection(
    monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, seconds: float, pause: float
) -> None:
    collections = Collections(monkeypatch, seconds)
    async with opened() as freed:
        freed.note_unloaded(0)
        await collections.reach(1)
        for _ in range(3):
            freed.note_unloaded(0)
        await wait_all_tasks_blocked()
        mock_clock.jump(pause * 0.9)
        await wait_all_tasks_blocked()
        assert collections.count == 1
        mock_clock.jump(pause * 0.11)
        await collections.reach(2)
        mock_clock.jump(pause * 10)
        await wait_all_tasks_blocked()
        assert collections.count == 2
        freed.note_unloaded(0)
        await collections.reach(3)


async def test_the_end_waits_for_no_collection(monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock) -> None:
    collections = Collections(monkeypatch, 1.0)
    async with opened() as freed:
        freed.note_unloaded(0)
        await collections.reach(1)
        freed.note_unloaded(0)
    freed.note_unloaded(0)
    assert collections.count == 1


async def test_a_collection_that_fails_is_noted_and_the_next_unload_begins_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(has_frozen: bool) -> None:
        raise OSError("no more")

    monkeypatch.setattr("actors.lifecycle.freed_memory.return_free_memory", fail)
    failures = CallbackFailures()
    async with opened(failures) as freed:
        for count in (1, 2):
            freed.note_unloaded(0)
            while failures.counts().get("background", 0) < count:
                await trio.lowlevel.checkpoint()


async def test_only_what_was_frozen_needs_a_look_at_all(monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock) -> None:
    """Models of the start, then one that was loaded behind it, one that the look at all has frozen, and a new one."""
    collections = Collections(monkeypatch, 0.001)
    has_started = False
    monkeypatch.setattr("actors.lifecycle.freed_memory.collects_less", lambda: has_started)
    async with opened() as freed:
        of_the_start = freed.age()
        has_started = True
        loaded, kept = freed.age(), freed.age()

        async def unload(age: int) -> None:
            mock_clock.jump(LEAST_PAUSE_SECONDS * 2)
            freed.note_unloaded(age)
            await collections.reach(collections.count + 1)

        await unload(loaded)
        await unload(of_the_start)
        await unload(kept)
        await unload(freed.age())
    assert collections.with_frozen == [False, True, True, False]
