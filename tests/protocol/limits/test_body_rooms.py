"""Rooms that are announced and never filled: their number and their addresses are bounded."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.limits.body_rooms import MOST_BYTES, MOST_ROOMS, UNCOUNTED_SIZE, BodyRooms


def test_a_room_counts_until_its_memory_is_free() -> None:
    """Not until the body is read: a model may hold a tensor of it."""
    rooms = BodyRooms()
    room = rooms.make(UNCOUNTED_SIZE)
    assert room is not None
    tensor = np.frombuffer(room.toreadonly(), np.float32)[3:7]
    assert (rooms.count, rooms.reserved) == (1, UNCOUNTED_SIZE)
    del room
    assert rooms.count == 1
    del tensor
    assert (rooms.count, rooms.reserved) == (0, 0)


def test_there_are_so_many() -> None:
    rooms = BodyRooms()
    made = [rooms.make(UNCOUNTED_SIZE) for _ in range(MOST_ROOMS)]
    assert None not in made
    assert rooms.make(UNCOUNTED_SIZE) is None
    assert rooms.make(UNCOUNTED_SIZE - 1) is not None
    made.pop()
    assert rooms.make(UNCOUNTED_SIZE) is not None


def test_they_have_so_many_bytes() -> None:
    rooms = BodyRooms()
    rooms.reserved = MOST_BYTES - UNCOUNTED_SIZE
    assert rooms.make(UNCOUNTED_SIZE + 1) is None
    assert rooms.make(UNCOUNTED_SIZE) is not None


def test_where_there_is_no_memory_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a limit of the process's addresses, or where the system does not promise more than it has."""

    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "empty", refuse)
    assert BodyRooms().make(10) is None
