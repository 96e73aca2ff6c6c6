"""The event log: reading from any place, now and later, and what is dropped."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.errors import InvalidArgument
from protocol.responses.event_log import EventLog


def test_reading_from_any_place() -> None:
    log = EventLog()
    log.append(b"a\nb\n\nc\n\n")
    log.append(b"d\n\n")
    assert log.read(0) == (b"a\nb\n\nc\n\nd\n\n", 3)
    assert log.read(2) == (b"d\n\n", 3)
    assert log.read(3) == (b"", 3)
    assert log.read(9) == (b"", 9)


def test_old_events_are_dropped() -> None:
    log = EventLog(limit=200)
    for number in range(10):
        log.append(b"%d\n\n" % number)
    assert log.size <= 200
    assert log.read(7) == (b"7\n\n8\n\n9\n\n", 10)
    with pytest.raises(InvalidArgument, match="events before 7 are not kept"):
        log.read(6)


def test_many_events_are_read_in_portions() -> None:
    log = EventLog()
    log.append(b"x\n\n" * 300)
    data, place = log.read(0)
    assert (data.count(b"x"), place) == (256, 256)
    assert log.read(place)[1] == 300


async def test_all_readers_wake(autojump_clock: trio.testing.MockClock) -> None:
    log = EventLog()
    found: list[bytes] = []

    async def read() -> None:
        place = 0
        while True:
            data, place = log.read(place)
            if data:
                found.append(data)
            elif log.is_over:
                return
            else:
                await log.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        log.append(b"a\n\n")
        await trio.testing.wait_all_tasks_blocked()
        assert found == [b"a\n\n"] * 3
        log.end()
