"""Reads whole files ahead, several at the same time, so that rows that are files do not cost a round trip each. Blocks.

What is read and not used yet counts within a bound on the bytes of all readers; the file that is next is read in any
case.
"""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import BinaryIO

from actors.jobs.data.places import InputFile

# Files of one reader that are read at the same time, or wait.
MOST_FILES = 16
# Of all readers of a server together.
MOST_BYTES = 256 << 20


class AheadRoom:
    """The bytes that may be read ahead."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._left = most
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Whether there is room for so many."""
        with self._lock:
            is_taken = size <= self._left
            if is_taken:
                self._left -= size
        return is_taken

    def give_back(self, size: int) -> None:
        with self._lock:
            self._left += size


class ReadFile:
    """Implements `InputFile` by one whose content is being read. A thread of its own does that, which nobody waits for
    when it is not wanted any more."""

    def __init__(self, file: InputFile, most_bytes: int, room: int) -> None:
        """`room` is what was taken for it."""
        self.room = room
        self._file = file
        self._most_bytes = most_bytes
        self._content = b""
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="job-file", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def size(self) -> int:
        return self._file.size

    @property
    def stamp(self) -> str:
        return self._file.stamp

    def open(self) -> BinaryIO:
        """Its content. Raises what reading it has raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return io.BytesIO(self._content)

    def _read(self) -> None:
        try:
            with closing(self._file.open()) as opened:
                self._content = opened.read(self._most_bytes)
        except Exception as error:
            self._error = error


def read_ahead(files: Iterable[InputFile], most_bytes: int, room: AheadRoom) -> Generator[InputFile, None, None]:
    """The same files in the same order, of each so many bytes at most. To be closed if it is not used to its end."""
    left = iter(files)
    following = next(left, None)
    begun: deque[ReadFile] = deque()
    try:
        while following is not None or begun:
            while following is not None and len(begun) < MOST_FILES:
                size = min(following.size, most_bytes)
                is_taken = room.take(size)
                if not is_taken and begun:
                    break
                begun.append(ReadFile(following, most_bytes, size if is_taken else 0))
                following = next(left, None)
            yield begun[0]
            room.give_back(begun.popleft().room)
    finally:
        for file in begun:
            room.give_back(file.room)
