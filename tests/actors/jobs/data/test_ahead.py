"""Files that are read ahead: several at once, in order, within a bound on their bytes, given up with their reader."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

import pytest

from actors.jobs.data.ahead import MOST_FILES, AheadRoom, read_ahead
from actors.jobs.data.reader import InputReader, SharedBounds
from protocol.errors import Unavailable
from protocol.jobs.source import DataFormat

PATIENCE = 30.0


@dataclass
class File:
    """Calls `reading` in the thread that reads it."""

    name: str
    reading: Callable[[File], None] = lambda _: None
    size: int = 10
    stamp: str = ""
    begun: threading.Event = field(default_factory=threading.Event)

    def open(self) -> BinaryIO:
        self.begun.set()
        self.reading(self)
        return io.BytesIO(self.name.encode())


def shared(room: int) -> SharedBounds:
    return SharedBounds(ahead=AheadRoom(room))


def test_many_are_read_at_once_and_come_in_order() -> None:
    together = threading.Barrier(MOST_FILES)

    def wait_for_all(file: File) -> None:
        together.wait(PATIENCE)  # breaks unless as many as that are read at the same time

    files = [File(f"{number:03}", wait_for_all) for number in range(3 * MOST_FILES)]
    # Later ones would find fewer beside them: each time one is used, one is begun.
    for file in files[MOST_FILES:]:
        file.reading = lambda _: None
    rows = list(InputReader(files, DataFormat.IMAGES, shared=shared(1 << 20)).rows())
    assert [row.content.values for row in rows] == [{"": file.name.encode()} for file in files]
    assert [row.end.row for row in rows] == [*range(1, len(files) + 1)]


def test_no_more_bytes_than_there_is_room_for() -> None:
    """The next one is read in any case."""
    files = [File(str(number)) for number in range(9)]
    room = AheadRoom(25)
    reading = read_ahead(files, 100, room)
    assert next(reading).name == "0"
    assert files[1].begun.wait(PATIENCE)
    assert not files[2].begun.is_set()
    assert next(reading).name == "1"
    assert files[2].begun.wait(PATIENCE)
    assert not files[3].begun.is_set()
    reading.close()
    assert room.take(25)
    assert [file.name for file in read_ahead(files, 100, room)] == [file.name for file in files]


def test_a_file_that_cannot_be_read_fails_in_its_place() -> None:
    def fail(file: File) -> None:
        raise Unavailable("the store does not answer")

    files = [File("a"), File("b", fail), File("c")]
    room = AheadRoom(30)
    rows = InputReader(files, DataFormat.IMAGES, shared=SharedBounds(ahead=room)).rows()
    assert next(rows).file == "a"
    with pytest.raises(Unavailable, match="does not answer"):
        next(rows)
    assert room.take(30)


def test_a_reader_goes_on_behind_its_position_without_reading_what_is_done() -> None:
    files = [File("a"), File("b"), File("c")]
    first = next(InputReader(files, DataFormat.IMAGES).rows())
    again = [File("a"), File("b"), File("c")]
    assert [row.file for row in InputReader(again, DataFormat.IMAGES).rows(first.end)] == ["b", "c"]
    assert not again[0].begun.is_set()


def test_what_is_given_up_is_not_waited_for() -> None:
    release = threading.Event()

    def hang(file: File) -> None:
        release.wait(PATIENCE)

    rows = InputReader([File("a"), File("b", hang)], DataFormat.IMAGES).rows()
    assert next(rows).file == "a"
    rows.close()  # returns
    assert not release.is_set()
    release.set()
