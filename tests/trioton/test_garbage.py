"""Old garbage is looked for when there is time, or when it must be; as long as nothing is found, less often."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import count, pairwise

import pytest
import trio
import trio.testing

from backends.free_memory import NewObjects, OldGarbage, collect_less
from trioton import garbage
from trioton.garbage import FEW_NEW_SECONDS, LOOK_SECONDS, NEW_SECONDS, collect_garbage


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


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[float]]:
    """When a process that is busy would have collected, by generation."""
    when: dict[int, list[float]] = {0: [], 2: []}

    def collect(generation: int = 2) -> int:
        when[generation].append(trio.current_time())
        return 0

    monkeypatch.setattr(gc, "collect", collect)
    monkeypatch.setattr("trio.to_thread.run_sync", no_thread)
    monkeypatch.setattr("time.monotonic", trio.current_time)
    monkeypatch.setattr("time.process_time", lambda: 0.9 * trio.current_time())
    return when


async def no_thread(function: Callable[[], None]) -> None:
    """The virtual clock would not wait for one."""
    await trio.lowlevel.checkpoint()
    function()


async def test_a_busy_server_looks_at_old_objects_where_there_are_many(
    monkeypatch: pytest.MonkeyPatch, collected: dict[int, list[float]], autojump_clock: trio.testing.MockClock
) -> None:
    """100,000 more each second."""
    monkeypatch.setattr(NewObjects, "count", lambda new: round(100_000 * trio.current_time()))
    monkeypatch.setattr(garbage, "resident_bytes", lambda: 0)
    monkeypatch.setattr(garbage, "trim_heap", lambda: None)
    with trio.move_on_after(55):
        await collect_garbage()
    assert collected[2] == pytest.approx([24], abs=1.01)


@pytest.mark.parametrize(("cost", "each"), [(0.0, FEW_NEW_SECONDS), (0.001, NEW_SECONDS)])
async def test_new_objects_are_looked_at_less_often_where_they_are_few(
    monkeypatch: pytest.MonkeyPatch,
    collected: dict[int, list[float]],
    autojump_clock: trio.testing.MockClock,
    cost: float,
    each: float,
) -> None:
    times = count(0, cost)
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    with trio.move_on_after(20.01 * LOOK_SECONDS):
        await collect_garbage()
    assert len(collected[0]) == pytest.approx(20 * LOOK_SECONDS / each, rel=0.25)


async def test_what_is_given_back_may_not_all_become_garbage_again(
    monkeypatch: pytest.MonkeyPatch, collected: dict[int, list[float]], autojump_clock: trio.testing.MockClock
) -> None:
    """A process that grows by 32 MB each second, which a collection and the heap give back."""
    given_back = [0.0]
    monkeypatch.setattr(NewObjects, "count", lambda new: 0)
    monkeypatch.setattr(garbage, "resident_bytes", lambda: round((trio.current_time() - given_back[-1]) * (32 << 20)))
    monkeypatch.setattr(garbage, "trim_heap", lambda: given_back.append(trio.current_time()))
    with trio.move_on_after(100):
        await collect_garbage()
    pauses = [after - before for before, after in pairwise(collected[2])]
    assert len(pauses) >= 8
    assert max(pauses) <= 10
