"""Event streams: one sender at a time, and comments where nothing comes."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.http.openai.codec.chunks import KEEP_ALIVE
from protocol.http.openai.streams.event_stream import EventStream
from protocol.http.reply import Headers


class Writer:
    """Takes a second for each piece, and fails where two are sent at once; takes pieces `at_once` or not."""

    def __init__(self, seconds: float = 1, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.has_started = False
        self.sent: list[bytes] = []
        self._seconds = seconds
        self._is_busy = False

    async def start(self, status: int, headers: Headers) -> None:
        assert not self.has_started
        self.has_started = True
        self.sent.append(b"%d" % status)

    async def send(self, data: bytes) -> None:
        assert not self._is_busy
        self._is_busy = True
        try:
            await trio.sleep(self._seconds)
        finally:
            self._is_busy = False
        self.sent.append(data)

    def send_at_once(self, data: bytes) -> bool:
        assert self.has_started
        assert not self._is_busy
        if self.at_once:
            self.sent.append(data)
        return self.at_once

    async def end(self) -> None:
        self.sent.append(b"end")


async def test_many_tasks_send_one_after_the_other(autojump_clock: trio.testing.MockClock) -> None:
    writer = Writer()
    events = EventStream(writer, tuple)
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(events.send, b"%d" % number)
    assert writer.sent[0] == b"200"
    assert sorted(writer.sent[1:]) == [b"%d" % number for number in range(5)]
    assert trio.current_time() == pytest.approx(5)


async def test_nothing_follows_an_event_that_was_cut(autojump_clock: trio.testing.MockClock) -> None:
    """Half an event and then another one would be read as one that is neither."""
    writer = Writer(seconds=5)
    events = EventStream(writer, tuple)
    with trio.move_on_after(1):
        await events.send(b"cut")
    await events.send(b"never")
    await events.end()
    assert (events.is_cut, writer.sent) == (True, [b"200"])


async def test_events_are_sent_at_once_between_two_that_wait(autojump_clock: trio.testing.MockClock) -> None:
    writer = Writer(seconds=5)
    events = EventStream(writer, tuple)
    assert not events.send_at_once(b"before the head")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.send, b"first")
        await trio.testing.wait_all_tasks_blocked()
        assert not events.send_at_once(b"into the first")
    assert events.send_at_once(b"second")
    writer.at_once = False
    assert not events.send_at_once(b"no room")
    await events.end()
    assert writer.sent == [b"200", b"first", b"second", b"end"]


async def test_nothing_is_sent_at_once_behind_an_event_that_was_cut(autojump_clock: trio.testing.MockClock) -> None:
    writer = Writer(seconds=5)
    events = EventStream(writer, tuple)
    with trio.move_on_after(1):
        await events.send(b"cut")
    assert not events.send_at_once(b"never")
    assert writer.sent == [b"200"]


async def test_a_comment_that_is_being_sent_is_sent_whole(autojump_clock: trio.testing.MockClock) -> None:
    writer = Writer(seconds=5)
    events = EventStream(writer, tuple)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.keep_alive, 10)
        await trio.sleep(12)
        events.stop()
    await events.send(b"last")
    await events.end()
    assert writer.sent == [b"200", KEEP_ALIVE, b"last", b"end"]


async def test_comments_only_while_nothing_comes(autojump_clock: trio.testing.MockClock) -> None:
    writer = Writer(seconds=0)
    events = EventStream(writer, tuple)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.keep_alive, 10)
        await trio.sleep(25)
        assert writer.sent == [b"200", KEEP_ALIVE, KEEP_ALIVE]
        for _ in range(4):
            await events.send(b"a")
            await trio.sleep(8)
        assert writer.sent.count(KEEP_ALIVE) == 2
        events.stop()
