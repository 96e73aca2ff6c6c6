"""New garbage is looked for often, and old where it is due, which holds nobody up."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise

import pytest
import trio
import trio.testing

from backends.free_memory import NewObjects, collect_less
from protocol.limits.request_memory import RequestMemory
from protocol.open_connections import Open, OpenConnections
from trioton import garbage
from trioton.garbage import FEW_NEW_SECONDS, LOOK_SECONDS, NEW_SECONDS, collect_garbage, held_for_clients
from trioton.old_garbage import CLIENT_BYTES, Held


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
    monkeypatch.setattr("time.monotonic", lambda: 1e6 + trio.current_time())  # of a machine that was started long ago
    monkeypatch.setattr("time.process_time", lambda: 0.9 * trio.current_time())
    monkeypatch.setattr("sys.getallocatedblocks", lambda: 1_000_000)
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
        await collect_garbage(Held)
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
        await collect_garbage(Held)
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
        await collect_garbage(Held)
    pauses = [after - before for before, after in pairwise(collected[2])]
    assert len(pauses) >= 8
    assert max(pauses) <= 10


async def test_a_server_with_many_clients_does_not_look_at_all_that_they_hold(
    monkeypatch: pytest.MonkeyPatch, collected: dict[int, list[float]], autojump_clock: trio.testing.MockClock
) -> None:
    """100 connections and requests more each second, for each of which it grows by as much as one may have; then by
    more."""
    connections, memory = OpenConnections(), RequestMemory(1 << 30)
    grown = [CLIENT_BYTES]
    monkeypatch.setattr("sys.getallocatedblocks", lambda: 1_000_000 + round(20_000 * trio.current_time()))
    monkeypatch.setattr(garbage, "resident_bytes", lambda: round(100 * trio.current_time() * grown[0]))
    monkeypatch.setattr(garbage, "trim_heap", lambda: None)
    with connections.of("http", lambda: Open(round(50 * trio.current_time()), round(50 * trio.current_time()))):
        with trio.move_on_after(200):
            await collect_garbage(partial(held_for_clients, connections, memory))
        assert collected[2] == []
        grown[0] *= 2
        with trio.move_on_after(400):
            await collect_garbage(partial(held_for_clients, connections, memory))
        assert len(collected[2]) >= 1


async def test_what_the_heap_gives_back_is_not_taken_for_garbage(
    monkeypatch: pytest.MonkeyPatch, collected: dict[int, list[float]], autojump_clock: trio.testing.MockClock
) -> None:
    """A process that grows by 32 MB each second, all of which is free, where a collection takes long."""
    given_back = [0.0]
    times = iter([1_000_000])
    monkeypatch.setattr("sys.getallocatedblocks", lambda: next(times, 2_000_000))
    monkeypatch.setattr(garbage, "resident_bytes", lambda: round((trio.current_time() - given_back[-1]) * (32 << 20)))
    monkeypatch.setattr(garbage, "trim_heap", lambda: given_back.append(trio.current_time()))
    with trio.move_on_after(100):
        await collect_garbage(Held)
    assert len(given_back) > 8
    assert collected[2] == []


def test_clients_are_connections_streams_and_the_bytes_of_requests() -> None:
    connections, memory = OpenConnections(), RequestMemory(1 << 30)
    memory.take(1000)
    with connections.of("http", lambda: Open(3, 0)), connections.of("grpc", lambda: Open(2, 50)):
        assert held_for_clients(connections, memory) == Held(55, 1000)
