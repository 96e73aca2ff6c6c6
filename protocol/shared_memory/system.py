"""System shared memory: clients' POSIX segments, opened by key, copied from and to.

A client can truncate its segment whenever it likes, and what is copied out of its mapping then is lost (`mapping`). It
is tried again through the descriptor, where `preadv` comes back short and `pwritev` says what is wrong; so is all of a
segment that cannot be mapped. For 600 kB on one core of a 2-core x86-64 machine a copy out of a mapping takes 14 us and
one into it 13, a `preadv` 33 and a `pwritev` 42. No request sees a view of the mapping: its data cannot change once it
is read. Source: Triton's system shared memory extension.
"""

from __future__ import annotations

import errno
import importlib
import os
import stat
import sys

import numpy as np

from protocol.errors import InvalidArgument, ServerError, Unavailable, Unsupported
from protocol.messages import Buffer
from protocol.shared_memory.mapping import Mapping, mapped
from protocol.shared_memory.regions import shown

if sys.platform != "win32":
    import resource

# Segments of Triton's own Python backend, which no client may reach.
RESERVED_PREFIX = "triton_python_backend_shm_region_"
_SEGMENTS = "/dev/shm"  # where Linux keeps POSIX segments
_MAX_KEY_LENGTH = 1024  # the name in it has 255 bytes at most, but slashes before it cost nothing
_NO_DESCRIPTOR_LEFT = (errno.EMFILE, errno.ENFILE)


def segment_name(key: str, *, region: str) -> str:
    """The key without its leading slashes: the name of one segment, never a path out of their namespace.

    Raises:
        InvalidArgument: the key is empty, too long, holds `/` or NUL, is `.` or `..`, is no text, or has the reserved
            prefix.
    """
    name = key.lstrip("/")
    if name.startswith(RESERVED_PREFIX):
        raise InvalidArgument(
            f"cannot register shared memory region '{region}' with key '{shown(key)}' as the key contains the "
            f"reserved prefix '{RESERVED_PREFIX}'"
        )
    if len(key) > _MAX_KEY_LENGTH or name in ("", ".", "..") or "/" in name or "\0" in name or not is_text(name):
        raise InvalidArgument(f"cannot register shared memory region '{region}' - invalid shm key '{shown(key)}'")
    return name


def is_text(value: str) -> bool:
    """Whether the value can be encoded; JSON can spell lone surrogates, which can not."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def descriptor_limit() -> int:
    """How many descriptors the process may have open."""
    if sys.platform == "win32":
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class Segment:
    """An open segment, for one region; `mapping` is of that region. Its file lives until `close`, also when the client
    unlinks it.

    `read` and `write` see anew what the segment holds. They raise InvalidArgument where it has become too small for
    what was registered, and Unavailable where memory for the copy or room in the file system is lacking.
    """

    def __init__(self, descriptor: int, mapping: Mapping | None, *, region: str, key: str) -> None:
        self._descriptor = descriptor
        self._mapping = mapping
        self._region = region
        self._key = key

    def read(self, position: int, size: int) -> Buffer:
        try:
            buffer = np.empty(size, np.uint8).data
            if self._fill(buffer, position) < size:
                raise self._truncated(position, size)
        except (OSError, MemoryError) as error:
            raise Unavailable(
                f"unable to read {size} bytes of shared memory region '{self._region}': {_reason(error)}"
            ) from None
        return buffer.toreadonly()

    def read_into(self, position: int, memory: memoryview) -> None:
        """Fill it all, with zeros for what is not there any more, or cannot be read. Raises nothing."""
        if self._mapping is not None and self._mapping.read_into(memory, position):
            return
        try:
            done = self._fill(memory, position)
        except OSError:
            done = 0
        if done < len(memory):
            np.frombuffer(memory, np.uint8)[done:] = 0

    def _fill(self, memory: memoryview, position: int) -> int:
        """As much as there is, as the result says."""
        done, size = 0, len(memory)
        mapping = self._mapping
        if mapping is not None and self._held() >= position + size and mapping.read_into(memory, position):
            return size
        while done < size:  # one call gives 2 GiB at most
            count = os.preadv(self._descriptor, [memory[done:] if done else memory], position + done)
            if count == 0:
                break
            done += count
        return done

    def write(self, position: int, data: Buffer) -> None:
        """A segment that was truncated is not written to, and so does not grow again, unless it is written through the
        descriptor and its client truncates it between the check and that: then it takes back what it once had, at the
        client's cost."""
        view = memoryview(data)
        size = view.nbytes
        self.check_holds(position, size)
        if not size:
            return
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B")
        if self._mapping is not None:
            if self._mapping.write(position, view):
                return
            self.check_holds(position, size)  # no longer, in most cases
        done = 0
        try:
            while done < size:
                count = os.pwritev(self._descriptor, [view[done:]], position + done)
                if count == 0:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                done += count
        except OSError as error:
            raise Unavailable(
                f"unable to write {size} bytes to shared memory region '{self._region}': {_reason(error)}"
            ) from None

    def close(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
        os.close(self._descriptor)

    def check_holds(self, position: int, size: int) -> None:
        if self._held() < position + size:
            raise self._truncated(position, size)

    def _held(self) -> int:
        """How many bytes the segment has at this moment: a sixth of the work of `os.fstat`, and the descriptor's own
        position, which this moves, is nobody's."""
        return os.lseek(self._descriptor, 0, os.SEEK_END)

    def _truncated(self, position: int, size: int) -> ServerError:
        return InvalidArgument(
            f"shared memory region '{self._region}' was truncated: {size} bytes at offset {position} of segment "
            f"'{self._key}' are needed, but it holds {self._held()} bytes"
        )


def open_segment(region: str, key: str, offset: int, byte_size: int) -> Segment:
    """Open the segment of a key that `segment_name` accepts. It does not block, whatever the key names.

    Raises:
        InvalidArgument: no segment that the server may read and write, or one that does not hold offset and size.
        Unavailable: the process has no descriptor left.
        Unsupported: the operating system has no segments that can be read through a descriptor.
    """
    name = segment_name(key, region=region)
    descriptor = _open(name, key)
    try:
        status = _status(descriptor, key)
        if offset < 0 or byte_size <= 0 or offset + byte_size > status.st_size:
            raise InvalidArgument(f"failed to register shared memory region '{region}': invalid args")
    except ServerError:
        os.close(descriptor)
        raise
    return Segment(descriptor, mapped(descriptor, offset, byte_size), region=region, key=key)


def _open(name: str, key: str) -> int:
    try:
        if sys.platform == "linux":
            # Not blocking, for whoever has put something else than a segment there.
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            return os.open(f"{_SEGMENTS}/{name}", flags)
        return _shm_open(name)
    except OSError as error:
        if error.errno in _NO_DESCRIPTOR_LEFT:
            raise Unavailable(f"Unable to open shared memory region: '{shown(key)}': {_reason(error)}") from None
        raise InvalidArgument(f"Unable to open shared memory region: '{shown(key)}'") from None


def _shm_open(name: str) -> int:
    """Elsewhere than on Linux. Not seen running; macOS is expected to be refused, for it only maps its segments."""
    try:
        posixshmem = importlib.import_module("_posixshmem")
    except ImportError:
        raise Unsupported("system shared memory is not supported on this operating system") from None
    descriptor: int = posixshmem.shm_open(f"/{name}", os.O_RDWR, mode=0o600)
    try:
        os.pread(descriptor, 1, 0)
    except OSError:
        os.close(descriptor)
        raise Unsupported("system shared memory is not supported on this operating system") from None
    return descriptor


def _status(descriptor: int, key: str) -> os.stat_result:
    try:
        status = os.fstat(descriptor)
    except OSError:
        raise InvalidArgument(f"Invalid shared memory region: '{shown(key)}'") from None
    if sys.platform == "linux" and not stat.S_ISREG(status.st_mode):
        raise InvalidArgument(f"Invalid shared memory region: '{shown(key)}'")
    return status


def _reason(error: OSError | MemoryError) -> str:
    return "out of memory" if isinstance(error, MemoryError) else os.strerror(error.errno or 0)
