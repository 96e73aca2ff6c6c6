"""Frames over a socket pair, with the test as the worker."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from backends.python.wire.channel import Channel, Handlers, WorkerGone
from backends.python.wire.frames import Frame
from backends.python.worker.trioton_worker.frames import CREDIT, DONE, EXECUTE, LOG, pack

QUESTION = pack(EXECUTE, b"{}")


def frame_of(text: bytes) -> bytes:
    return pack(DONE, b"{}", body_size=len(text)) + text


class Pair:
    """A channel, what it has taken, and the worker's end of its socket."""

    def __init__(self) -> None:
        ours, self.worker = socket.socketpair()
        self.taken: list[bytes] = []
        self.news = trio.Event()
        self.channel = Channel(ours, Handlers({DONE: self._take}))

    def _take(self, frame: Frame) -> None:
        self.taken.append(bytes(frame.body))
        self.news.set()

    async def next_frame(self) -> bytes:
        while not self.taken:
            self.news = trio.Event()
            await self.news.wait()
        return self.taken.pop(0)

    def close(self) -> None:
        self.channel.close()
        self.worker.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.fixture
async def running(pair: Pair, nursery: trio.Nursery) -> Pair:
    nursery.start_soon(pair.channel.run)
    return pair


async def receive(pair: Pair, size: int) -> bytes:
    """So many bytes at the worker's end."""
    pair.worker.setblocking(False)
    received = bytearray()
    while len(received) < size:
        await trio.lowlevel.wait_readable(pair.worker)
        received.extend(pair.worker.recv(1 << 20))
    return bytes(received)


async def test_frames_go_and_come(running: Pair) -> None:
    await running.channel.send(QUESTION, [b"abc", memoryview(b"de")], 5)
    running.channel.post(QUESTION)
    assert await receive(running, 2 * len(QUESTION) + 5) == QUESTION + b"abcde" + QUESTION
    running.worker.sendall(frame_of(b"one") + frame_of(b"two"))
    assert [await running.next_frame(), await running.next_frame()] == [b"one", b"two"]


async def test_what_was_given_before_anybody_reads_is_there_later(pair: Pair, nursery: trio.Nursery) -> None:
    """Half a frame as well."""
    whole = frame_of(b"x" * 100)
    await pair.channel.send(QUESTION)
    pair.worker.sendall(whole[:10])
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as reading:
            reading.start_soon(pair.channel.run)
            await wait_all_tasks_blocked()
            pair.worker.sendall(whole[10:70])
            await wait_all_tasks_blocked()
            scope.cancel()
    assert pair.taken == []
    nursery.start_soon(pair.channel.run)
    pair.worker.sendall(whole[70:])
    assert await pair.next_frame() == b"x" * 100


async def test_frames_that_do_not_go_at_once_keep_their_order(running: Pair) -> None:
    """Large and small ones, awaited and posted, and one whose sender has gone half-way."""
    parts = [bytes([index]) * 300_000 for index in range(4)]
    with trio.move_on_after(0.01) as scope:
        await running.channel.send(QUESTION, parts, 1_200_000)
    assert scope.cancelled_caught
    running.channel.post(pack(CREDIT, b"{}"))
    expected = QUESTION + b"".join(parts) + pack(CREDIT, b"{}") + QUESTION
    async with trio.open_nursery() as sending:
        sending.start_soon(running.channel.send, QUESTION)
        assert await receive(running, len(expected)) == expected


async def test_descriptors_go_with_their_frame_once(pair: Pair) -> None:
    await pair.channel.send(QUESTION, [b"abc"], 3, [pair.worker.fileno()])
    data, descriptors, _, _ = socket.recv_fds(pair.worker, 1000, 5)
    assert data == QUESTION + b"abc"
    assert len(descriptors) == 1
    os.close(descriptors[0])
    await pair.channel.send(QUESTION)
    assert socket.recv_fds(pair.worker, 1000, 5)[:2] == (QUESTION, [])


async def test_the_end_of_the_worker_ends_it(pair: Pair) -> None:
    """What it sent before still counts."""
    pair.worker.sendall(frame_of(b"last"))
    pair.worker.close()
    await pair.channel.run()
    assert pair.taken == [b"last"]
    pair.channel.post(QUESTION)
    with pytest.raises(WorkerGone, match=r"^$"):
        await pair.channel.send(QUESTION)


async def test_hanging_up_ends_a_wait_that_the_worker_would_not(pair: Pair) -> None:
    pair.worker.sendall(frame_of(b"before"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.channel.run)
        await wait_all_tasks_blocked()
        pair.channel.hang_up()
    assert pair.taken == [b"before"]


@pytest.mark.parametrize("data", [b"nonsense" * 10, pack(LOG, b"{}")], ids=["garbage", "refused"])
async def test_nonsense_closes_the_channel_and_says_why(pair: Pair, data: bytes) -> None:
    pair.worker.sendall(data)
    await pair.channel.run()
    assert pair.channel.problem.startswith("it")
    with pytest.raises(WorkerGone, match=r"^it"):
        await pair.channel.send(QUESTION)


async def test_closing_wakes_those_who_wait(pair: Pair) -> None:
    async def send() -> None:
        with pytest.raises(WorkerGone):
            await pair.channel.send(QUESTION, [bytes(4_000_000)], 4_000_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.channel.run)
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        pair.channel.close()


async def test_a_worker_that_sends_without_end_lets_others_work(pair: Pair) -> None:
    """Between one read and the next."""
    pair.worker.setblocking(False)
    count = 0
    with suppress(BlockingIOError):
        while True:
            pair.worker.sendall(frame_of(b"x" * 8000))
            count += 1
    seen: set[int] = set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.channel.run)
        while len(pair.taken) < count:
            await trio.lowlevel.checkpoint()
            seen.add(len(pair.taken))
        nursery.cancel_scope.cancel()
    assert len(seen - {0, count}) > 0


async def test_many_small_frames_are_taken_a_few_at_a_time(running: Pair) -> None:
    """And in their order, whatever comes behind them; all are there before the end is known."""
    most = 0
    count = 1000
    await wait_all_tasks_blocked()
    running.worker.sendall(b"".join(frame_of(str(number).encode()) for number in range(count)))
    running.worker.shutdown(socket.SHUT_WR)
    while len(running.taken) < count:
        before = len(running.taken)
        await trio.lowlevel.checkpoint()
        most = max(most, len(running.taken) - before)
    assert most <= 2 * 16  # those of a task's turn, and of the poller's
    assert running.taken == [str(number).encode() for number in range(count)]


async def test_what_a_cancelled_run_has_left_is_taken_by_the_next_one(pair: Pair) -> None:
    pair.worker.sendall(b"".join(frame_of(str(number).encode()) for number in range(200)))
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.channel.run)
            while not pair.taken:
                await trio.lowlevel.checkpoint()
            scope.cancel()
    assert len(pair.taken) < 200
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.channel.run)
        while len(pair.taken) < 200:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert pair.taken == [str(number).encode() for number in range(200)]
