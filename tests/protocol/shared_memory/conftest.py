"""Real segments, made and unlinked as a client does, and a count of what the server keeps open."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import TypeVar

import pytest

from protocol.datatypes import DataType
from protocol.errors import ServerError
from protocol.messages import Buffer, Tensor
from protocol.shared_memory.table import SharedMemoryTable
from tests import descriptors

MakeSegment = Callable[[bytes], "ClientSegment"]
T = TypeVar("T")


class ClientSegment:
    """A client's segment. Its contents are looked at through the file: a mapping of a truncated one is deadly."""

    def __init__(self, contents: bytes) -> None:
        self.key = f"/trioton_test_{uuid.uuid4().hex}"
        self.path = Path("/dev/shm") / self.key[1:]
        self._memory = SharedMemory(self.key, create=True, size=len(contents))
        self.path.write_bytes(contents)
        assert self.path.stat().st_size == len(contents)

    @property
    def contents(self) -> bytes:
        return self.path.read_bytes()

    def write(self, position: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(position)
            file.write(data)

    def truncate(self, size: int) -> None:
        os.truncate(self.path, size)

    def unlink(self) -> None:
        self._memory.close()
        if self.path.exists():
            self._memory.unlink()


@pytest.fixture
def table() -> Iterator[SharedMemoryTable]:
    """A table of a server that allows registration; it keeps nothing open when the test ends."""
    table = SharedMemoryTable(allow_registration=True)
    before = open_descriptors()
    yield table
    table.close()
    assert open_descriptors() <= before


@pytest.fixture
def make_segment(table: SharedMemoryTable) -> Iterator[MakeSegment]:
    """Makes segments that go before the table does, so that what is open then is the table's."""
    with ExitStack() as stack:

        def make(contents: bytes) -> ClientSegment:
            segment = ClientSegment(contents)
            stack.callback(segment.unlink)
            return segment

        yield make


def output(data: Buffer) -> Tensor:
    """An output called `o`."""
    return Tensor("o", DataType.UINT8, (memoryview(data).nbytes,), data)


def attempt(call: Callable[[], T]) -> T | ServerError:
    """What a call gives, or what it refuses with, where a test cannot know which it will be."""
    try:
        return call()
    except ServerError as error:
        return error


def open_descriptors() -> set[tuple[int, str]]:
    """Those of segments."""
    return {one for one in descriptors.open_descriptors() if one[1].startswith("/dev/shm/")}
