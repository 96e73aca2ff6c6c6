"""Where log lines go: a file, which is opened again when it was moved away, or a stream of the process.

Each is used by one thread, the log's writer, which may be held up by it for as long as the system likes.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import IO, Protocol

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
# A named pipe without a reader cannot be opened, and the attempt must not wait for one.
_AT_ONCE = os.O_NONBLOCK


def is_same_file(one: IO[str], other: IO[str]) -> bool:
    """Whether two streams of the process write to the same place, as after `2>&1`."""
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError, AttributeError):
        return False


class Place(Protocol):
    def write(self, data: bytes) -> None:
        """All of it. Raises OSError, and may have written a part."""

    def look(self) -> None:
        """To be called now and then before writing. Raises OSError: it cannot be written to now."""

    def reopen(self) -> None:
        """Write to what is there now under the name. Raises OSError."""

    def close(self) -> None: ...


class LogFile:
    """A file by its path. A named pipe whose reader is yet to come is taken, too.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        self._is_cut = False  # the last line has no end
        try:
            self._open()
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise

    def write(self, data: bytes) -> None:
        if self._descriptor == -1:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        if self._is_cut:
            data = b"\n" + data
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        finally:
            written = len(data) - len(view)
            if written:
                self._is_cut = data[written - 1 : written] != b"\n"

    def look(self) -> None:
        if self._descriptor == -1 or self._was_moved():
            self.reopen()

    def reopen(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        if self._descriptor != -1:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        descriptor = os.open(self._path, _FLAGS | _AT_ONCE, 0o644)
        os.set_blocking(descriptor, True)
        self._descriptor = descriptor
        self._is_cut = False

    def _was_moved(self) -> bool:
        ours = os.fstat(self._descriptor)
        try:
            theirs = os.stat(self._path)
        except OSError:
            return stat.S_ISREG(ours.st_mode)
        return (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino)


class LogStream:
    """A stream of the process, by its descriptor: a lock of the stream that a write is stuck under would hold up the
    interpreter's end. One without a descriptor is written to itself."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        try:
            self._descriptor = stream.fileno()
        except (OSError, ValueError, AttributeError):
            self._descriptor = -1

    def write(self, data: bytes) -> None:
        if self._descriptor == -1:
            self._stream.write(data.decode())
            self._stream.flush()
            return
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def look(self) -> None:
        pass

    def reopen(self) -> None:
        pass

    def close(self) -> None:
        pass
