"""Old garbage is looked for when there is time, or when it must be; as long as nothing is found, less often."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import trio
import trio.testing

from backends.free_memory import NewObjects, OldGarbage, collect_less
from trioton import garbage
from trioton.garbage import IDLE_AFTER, NEW_SECONDS, collect_garbage


@pytest.mark.parametrize(
    ("looks", "due"),
    [
        # Thousands of objects so far, whether the process is idle, and what would be found.
        ([(799, True, 0), (800, True, 0)], [False, True]),
        ([(800, False, 0), (2599, False, 0), (2600, False, 0)], [False, False, True]),
        ([(800, True, 0), (1999, True, 0), (2000, True, 0)], [True, False, True]),
        ([(800, True, 50), (1399, True, 0), (1400, True, 0)], [True, False, True]),
        ([(800, True, 0), (2000, True, 50), (2600, True, 0)], [True, True, True]),
    ],
)
def test_when_old_garbage_is_looked_for(looks: list[tuple[int, bool, int]], due: list[bool]) -> None:
    policy, found = OldGarbage(200_000, 0), []
    for thousands, is_idle, garbage_found in looks:
        found.append(policy.is_due(1_000 * thousands, 0, is_idle=is_idle))
        if found[-1]:
            policy.note(1_000 * thousands, 0, 1_000 * garbage_found)
    assert found == due


@pytest.mark.parametrize(("is_idle", "megabytes"), [(True, 64), (False, 256)])
def test_a_process_that_grows_is_looked_at(is_idle: bool, megabytes: int) -> None:
    """Few objects may hold much: what waits for a collection is bounded by that, too."""
    policy, resident = OldGarbage(100, 1 << 30), 1 << 30
    for _ in range(3):
        assert not policy.is_due(101, resident + (megabytes << 20) - 1, is_idle=is_idle)
        resident += megabytes << 20
        assert policy.is_due(101, resident, is_idle=is_idle)
        policy.note(101, resident, 0)
    assert not policy.is_due(101, resident - (1 << 30), is_idle=is_idle)


def test_it_is_never_looked_for_less_often_than_that() -> None:
    policy, objects = OldGarbage(0, 0), 0
    for _ in range(20):
        objects += 9_600_000
        assert policy.is_due(objects, 0, is_idle=True)
        policy.note(objects, 0, 0)


def test_what_has_outlived_a_collection_is_not_looked_at_by_the_way() -> None:
    before = gc.get_threshold()
    try:
        collect_less()
        older = [each["collections"] for each in gc.get_stats()[1:]]
        kept = [[number] for number in range(200_000)]
        assert [each["collections"] for each in gc.get_stats()[1:]] == older
        assert len(kept) == 200_000
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def test_new_objects_are_collected_and_counted_where_as_many_go() -> None:
    before = gc.get_threshold()
    try:
        collect_less()
        new, kept, going = NewObjects(), list[list[int]](), [[number] for number in range(20_000)]
        counted = new.count()
        for number in range(20_000):
            kept.append([number])
            going.pop()
        assert len(gc.get_objects(0)) > 15_000  # or this is not needed any more
        new.collect()
        assert len(gc.get_objects(0)) < 1_000
        assert new.count() - counted < 6_000
        more = [[number] for number in range(1_500)]
        new.collect()
        assert 1_500 <= new.count() - counted < 8_000
        assert len(kept) + len(more) == 21_500
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def no_thread(function: Callable[[], None]) -> None:
    """Which the virtual clock would not wait for."""
    await trio.lowlevel.checkpoint()


async def test_a_server_looks_now_and_then(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Busy it waits for longer, or until it has grown; among new objects it looks often."""
    look_seconds = IDLE_AFTER * NEW_SECONDS
    began = trio.current_time()

    def looks() -> float:
        return (trio.current_time() - began) / look_seconds

    monkeypatch.setattr(NewObjects, "count", lambda new: 1_000_000 * looks())
    monkeypatch.setattr(garbage, "resident_bytes", lambda: (looks() > 4.05) << 28)
    monkeypatch.setattr("trio.to_thread.run_sync", no_thread)
    monkeypatch.setattr("time.monotonic", trio.current_time)
    monkeypatch.setattr("time.process_time", lambda: 0.9 * trio.current_time())
    collected: list[float] = []
    collected_new: list[float] = []

    def collect(generation: int = 2) -> int:
        (collected_new if generation == 0 else collected).append(trio.current_time())
        return 0

    monkeypatch.setattr(gc, "collect", collect)
    with trio.move_on_after(look_seconds * 5.5):
        await collect_garbage()
    assert [(at - began) / look_seconds for at in collected] == pytest.approx([2.4, 4.1])
    assert len(collected_new) == pytest.approx(5.5 * look_seconds / NEW_SECONDS, abs=1)
