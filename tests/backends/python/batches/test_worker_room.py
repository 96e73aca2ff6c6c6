"""Who may give a worker a batch, and when."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from backends.python.batches.open_batch import OpenBatch
from backends.python.batches.portions import BatchTooLarge
from backends.python.batches.worker_room import WorkerRoom
from backends.python.wire.channel import Channel, Handlers


@pytest.fixture
def channel() -> Iterator[Channel]:
    here, there = socket.socketpair()
    with here, there:
        yield Channel(here, Handlers())


def batch(size: int) -> OpenBatch:
    """One that has entered, with inputs of so many bytes."""
    return OpenBatch(1, (), size)


def test_room_is_what_others_leave(channel: Channel) -> None:
    room = WorkerRoom(channel, (), concurrency=9, byte_limit=100)
    assert room.enter(60)
    assert not room.enter(41)
    assert room.enter(40)
    room.leave(batch(60))
    assert not room.enter(61)
    assert room.enter(60)
    assert room.in_worker == 2
    with pytest.raises(BatchTooLarge):
        room.enter(101)


@pytest.mark.parametrize("with_inputs", [False, True])
def test_response_senders_may_keep_a_batchs_inputs_but_not_its_place(channel: Channel, with_inputs: bool) -> None:
    room = WorkerRoom(channel, (), concurrency=1, byte_limit=100)
    late = batch(60)
    assert room.enter(60)
    assert not room.enter(10)
    room.leave_place(late, with_inputs=with_inputs)
    assert room.enter(41) is with_inputs
    room.leave(late)
    assert room.enter(41) is not with_inputs
    assert room.in_worker == 1


async def test_a_large_batch_is_not_passed_by_small_ones(channel: Channel) -> None:
    room = WorkerRoom(channel, (), concurrency=9, byte_limit=100)
    began: list[int] = []

    async def begin(size: int) -> None:
        await room.wait(size)
        began.append(size)

    assert room.enter(60)
    async with trio.open_nursery() as nursery:
        for size in (80, 10):
            nursery.start_soon(begin, size)
            await trio.testing.wait_all_tasks_blocked()
        assert not room.enter(1)
        assert began == []
        room.leave(batch(60))
    assert began == [80, 10]
    assert room.in_worker == 2


async def test_who_no_longer_waits_has_not_entered(channel: Channel) -> None:
    room = WorkerRoom(channel, (), concurrency=1, byte_limit=100)
    assert room.enter(1)
    with trio.move_on_after(0):
        await room.wait(1)
    room.leave(batch(1))
    assert room.in_worker == 0
    with pytest.raises(BatchTooLarge):
        await room.wait(101)


def test_an_offer_is_taken_once_there_is_place_and_not_after_it_was_withdrawn(channel: Channel) -> None:
    room = WorkerRoom(channel, (), concurrency=1, byte_limit=100)
    told: list[str] = []
    running, other = batch(10), batch(0)
    other.has_left = True

    def kept() -> None:
        told.append("kept")

    def withdrawn() -> None:
        told.append("withdrawn")

    assert room.enter(10)
    room.offer(withdrawn)
    room.offer(kept)
    other.free = withdrawn
    room.withdraw(other)
    assert told == []
    room.leave(running)
    assert told == ["kept"]


async def test_nobody_is_offered_the_place_of_a_dead_worker(channel: Channel) -> None:
    room = WorkerRoom(channel, (), concurrency=1, byte_limit=100)
    told: list[str] = []
    assert room.enter(10)
    room.offer(lambda: told.append("offered"))
    channel.close()
    room.leave(batch(10))
    assert told == []
