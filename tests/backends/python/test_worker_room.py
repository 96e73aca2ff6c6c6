"""Who may give a worker a batch, and when."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from backends.python.channel import Channel
from backends.python.portions import BatchTooLarge
from backends.python.worker_room import WorkerRoom


@pytest.fixture
def channel() -> Iterator[Channel]:
    here, there = socket.socketpair()
    with here, there:
        yield Channel(here, lambda frame: None)


def test_room_is_what_others_leave(channel: Channel) -> None:
    room = WorkerRoom(channel, (), concurrency=9, byte_limit=100)
    assert room.may_begin(100)
    room.enter(60)
    assert room.may_begin(40)
    assert not room.may_begin(41)
    room.give_back(60)
    assert room.may_begin(41)
    with pytest.raises(BatchTooLarge):
        room.may_begin(101)


async def test_a_large_batch_is_not_passed_by_small_ones(channel: Channel) -> None:
    room = WorkerRoom(channel, (), concurrency=9, byte_limit=100)
    began: list[int] = []

    async def begin(size: int) -> None:
        await room.wait(size)
        room.enter(size)
        began.append(size)

    room.enter(60)
    async with trio.open_nursery() as nursery:
        for size in (80, 10):
            nursery.start_soon(begin, size)
            await trio.testing.wait_all_tasks_blocked()
        assert not room.may_begin(1)
        assert began == []
        room.give_back(60)
    assert began == [80, 10]


def test_an_offer_is_taken_once_there_is_place_and_not_after_it_was_withdrawn(channel: Channel) -> None:
    room = WorkerRoom(channel, (), concurrency=1, byte_limit=100)
    told: list[str] = []

    def kept() -> None:
        told.append("kept")

    def withdrawn() -> None:
        told.append("withdrawn")

    room.enter(10)
    room.offer(withdrawn)
    room.offer(kept)
    room.withdraw(withdrawn)
    assert told == []
    room.leave()
    assert told == ["kept"]
