"""A batch whose server ends at any of its calls of the store, before or after that is done: the next start makes it
whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.jobs.batches import batches as module
from protocol.jobs.batches.batch import BatchState
from tests.actors.jobs.batches.test_batches import Server, serving

NAMES = ["a", "fail b", "c", "d"]
CALLS = ("find_batch", "find", "change_batch", "read_file", "add", "request", "finish", "items", "file_writer")
MOST_CALLS = 60


class Crash:
    """Ends everything at one call of the store, before or after that is done."""

    def __init__(self, place: int, *, is_before: bool) -> None:
        self.has_come = trio.Event()
        self._left = place
        self._is_before = is_before

    def into(self, server: Server) -> None:
        for name in CALLS:
            setattr(server.store, name, self._counted(getattr(server.store, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            is_last = self._left == 0
            if is_last and self._is_before:
                await self._come()
            result = await call(*arguments, **named)
            if is_last:
                await self._come()
            return result

        return counted

    async def _come(self) -> None:
        self.has_come.set()
        await trio.sleep_forever()  # until all is cancelled, as by a crash


async def _crashed(folder: Path, crash: Crash) -> tuple[str, bool]:
    """The batch, and whether it had ended before the crash came."""
    async with serving(folder) as server:
        batch = await server.begin(*NAMES)
        crash.into(server)  # its task has not run yet
        async with trio.open_nursery() as nursery:

            async def wait(event: Callable[[], Any]) -> None:
                await event()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait, crash.has_come.wait)
            nursery.start_soon(wait, lambda: _until_left(server))
        return batch.id, not crash.has_come.is_set()


async def _until_left(server: Server) -> None:
    while server.batches._running:
        await trio.to_thread.run_sync(lambda: None)


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.slow
async def test_a_crash_at_any_call_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
    for place in range(1, MOST_CALLS):
        folder = tmp_path / str(place)
        with trio.fail_after(60):
            batch_id, was_whole = await _crashed(folder, Crash(place, is_before=is_before))
            async with serving(folder) as server:
                done = await server.ended(batch_id)
                assert done.state is BatchState.COMPLETED
                assert (done.counts.total, done.counts.completed, done.counts.failed) == (4, 3, 1)
                assert await server.custom_ids(done.output_file) == ["a", "c", "d"]
                assert await server.custom_ids(done.error_file) == ["fail b"]
                await server.until(batch_id, lambda _: not server.batches._running)
            async with serving(folder) as server:
                assert len(list((folder / "payloads").iterdir())) == 3
                assert await server.batches.find("ann", batch_id) == done
        if was_whole:
            break
    assert 15 < place < MOST_CALLS - 1
