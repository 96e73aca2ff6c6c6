"""Asking and answering over a socket pair, with the test as the worker."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio

from backends.python.channel import Channel, WorkerGone
from backends.python.wire import LogHead
from backends.python.worker.trioton_worker.frames import DONE, EXECUTE, LOG, pack

QUESTION = pack(EXECUTE, b"{}")
MESSAGE = pack(LOG, b'{"level":0,"message":"hello","filename":"f","line":1}')


def answer(text: bytes = b"") -> bytes:
    return pack(DONE, b"{}", body_size=len(text)) + text


class Pair:
    """A channel, and the worker's end of its socket."""

    def __init__(self) -> None:
        ours, self.worker = socket.socketpair()
        self.logged: list[str] = []
        self.channel = Channel(ours, self._log)

    def _log(self, head: LogHead) -> None:
        self.logged.append(head.message)

    def close(self) -> None:
        self.channel.close()
        self.worker.close()

    async def attend(self) -> None:
        await self.channel.read_until(lambda: False)

    async def body(self) -> bytes:
        frame = await self.channel.answer()
        assert frame is not None
        return bytes(frame.body)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    yield made
    made.close()


async def test_a_question_is_answered(pair: Pair) -> None:
    """Whether somebody attends or not, with log messages in between."""
    for is_attended in (False, True):
        async with trio.open_nursery() as nursery:
            if is_attended:
                nursery.start_soon(pair.attend)
                await trio.testing.wait_all_tasks_blocked()
            await pair.channel.ask(QUESTION)
            assert pair.worker.recv(1000) == QUESTION
            pair.worker.sendall(MESSAGE + answer(b"yes") + MESSAGE)
            assert await pair.body() == b"yes"
            assert await pair.channel.answer() is None
            nursery.cancel_scope.cancel()
    assert pair.logged == ["hello"] * 4


async def test_a_cancelled_wait_loses_nothing(pair: Pair) -> None:
    """Nor the half of a frame that has arrived, nor the answer."""
    whole = answer(b"x" * 100)
    await pair.channel.ask(QUESTION)
    for piece in (whole[:10], whole[10:70]):
        pair.worker.sendall(piece)
        with trio.move_on_after(0.01):
            await pair.channel.answer()
            pytest.fail("there is no whole answer yet")
    pair.worker.sendall(whole[70:])
    assert await pair.body() == b"x" * 100


async def test_a_reader_that_leaves_hands_over(pair: Pair) -> None:
    """Whoever still waits reads on."""
    found: list[bytes] = []

    async def wait() -> None:
        found.append(await pair.body())

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as attending:
            attending.start_soon(pair.attend)
            await trio.testing.wait_all_tasks_blocked()
            await pair.channel.ask(QUESTION)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            attending.cancel_scope.cancel()
        pair.worker.sendall(answer(b"yes"))
    assert found == [b"yes"]


async def test_the_rest_of_a_cancelled_question_is_sent_later(pair: Pair) -> None:
    pair.worker.setblocking(False)
    parts = [bytes([index]) * 300_000 for index in range(4)]
    with trio.move_on_after(0.01) as scope:
        await pair.channel.ask(QUESTION, parts)
    assert scope.cancelled_caught
    received = bytearray()

    async def work() -> None:
        while len(received) < len(QUESTION) + 1_200_000:
            await trio.lowlevel.wait_readable(pair.worker)
            received.extend(pair.worker.recv(1 << 20))
        pair.worker.sendall(answer(b"all"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        assert await pair.body() == b"all"
    assert bytes(received) == QUESTION + b"".join(parts)


async def test_descriptors_go_with_a_question_once(pair: Pair) -> None:
    await pair.channel.ask(QUESTION, [b"abc"], [pair.worker.fileno()])
    data, descriptors, _, _ = socket.recv_fds(pair.worker, 1000, 5)
    assert data == QUESTION + b"abc"
    assert len(descriptors) == 1
    os.close(descriptors[0])
    pair.worker.sendall(answer())
    assert await pair.body() == b""
    await pair.channel.ask(QUESTION)
    assert socket.recv_fds(pair.worker, 1000, 5)[:2] == (QUESTION, [])


async def test_the_end_of_the_worker_is_the_end_for_all(pair: Pair) -> None:
    """What it sent before still counts."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.attend)
        await pair.channel.ask(QUESTION)
        pair.worker.sendall(answer(b"last"))
        pair.worker.close()
        assert await pair.body() == b"last"
    with pytest.raises(WorkerGone, match=r"^$"):
        await pair.channel.ask(QUESTION)


async def test_hanging_up_ends_a_wait_that_the_worker_would_not(pair: Pair) -> None:
    await pair.channel.ask(QUESTION)
    pair.worker.sendall(MESSAGE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.attend)
        await trio.testing.wait_all_tasks_blocked()
        pair.channel.hang_up()
        with pytest.raises(WorkerGone):
            await pair.channel.answer()
    assert pair.logged == ["hello"]


@pytest.mark.parametrize(
    "data",
    [b"nonsense" * 10, answer() + answer(), pack(LOG, b"{}"), pack(LOG, b'{"level":7}')],
    ids=["garbage", "two answers", "no message", "half a message"],
)
async def test_nonsense_closes_the_channel_and_says_why(pair: Pair, data: bytes) -> None:
    await pair.channel.ask(QUESTION)
    pair.worker.sendall(data)
    await pair.attend()
    with pytest.raises(WorkerGone, match=r"^it"):
        await pair.channel.ask(QUESTION)


async def test_closing_wakes_those_who_wait(pair: Pair) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.attend)
        await pair.channel.ask(QUESTION)
        await trio.testing.wait_all_tasks_blocked()
        pair.channel.close()
        with pytest.raises(WorkerGone):
            await pair.channel.answer()


async def test_a_worker_that_sends_without_end_lets_others_work(pair: Pair) -> None:
    """Between one read and the next."""
    pair.worker.setblocking(False)
    count = 0
    with suppress(BlockingIOError):
        while True:
            pair.worker.sendall(pack(LOG, b'{"level":0,"message":"%s","filename":"f","line":1}' % (b"x" * 8000)))
            count += 1
    seen: set[int] = set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.attend)
        while len(pair.logged) < count:
            await trio.lowlevel.checkpoint()
            seen.add(len(pair.logged))
        nursery.cancel_scope.cancel()
    assert len(seen - {0, count}) > 0
