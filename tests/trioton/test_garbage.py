"""Old garbage is looked for when there is time, or when it must be; as long as nothing is found, less often."""

from __future__ import annotations

import gc
from itertools import chain, repeat

import pytest
import trio
import trio.testing

from backends.free_memory import OldGarbage, collect_less
from trioton import garbage
from trioton.garbage import LOOK_SECONDS, collect_old_garbage


@pytest.mark.parametrize(
    ("looks", "due"),
    [
        # The collections so far, whether the process is idle, and what would be found.
        ([(399, True, 0), (400, True, 0)], [False, True]),
        ([(400, False, 0), (1299, False, 0), (1300, False, 0)], [False, False, True]),
        ([(400, True, 0), (999, True, 0), (1000, True, 0)], [True, False, True]),
        ([(400, True, 50_000), (699, True, 0), (700, True, 0)], [True, False, True]),
        ([(400, True, 0), (1000, True, 50_000), (1300, True, 0)], [True, True, True]),
    ],
)
def test_when_old_garbage_is_looked_for(looks: list[tuple[int, bool, int]], due: list[bool]) -> None:
    policy, found = OldGarbage(100, 0), []
    for collections, is_idle, garbage_found in looks:
        found.append(policy.is_due(collections, 0, is_idle=is_idle))
        if found[-1]:
            policy.note(collections, 0, garbage_found)
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
    policy, collections = OldGarbage(0, 0), 0
    for _ in range(20):
        collections += 4_800
        assert policy.is_due(collections, 0, is_idle=True)
        policy.note(collections, 0, 0)


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


async def test_a_server_looks_now_and_then(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Busy it waits for longer."""
    collections = iter(chain((0, 300, 900), repeat(2_000)))
    monkeypatch.setattr(garbage, "young_collections", lambda: next(collections))
    monkeypatch.setattr(garbage, "resident_bytes", lambda: 0)
    monkeypatch.setattr("time.monotonic", trio.current_time)
    monkeypatch.setattr("time.process_time", lambda: 0.9 * trio.current_time())
    collected: list[float] = []

    def collect() -> int:
        collected.append(trio.current_time())
        return 0

    monkeypatch.setattr(gc, "collect", collect)
    with trio.move_on_after(LOOK_SECONDS * 5.5):
        began = trio.current_time()
        await collect_old_garbage()
    assert [at - began for at in collected] == [pytest.approx(3 * LOOK_SECONDS)]
