"""Names of shared memory regions, by slots that one process of a machine has at a time.

The names of a slot are always the same, so whoever takes a slot after a process that was killed finds what that has
left behind, in the system and on the server, and takes it back.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trioton.perf.caller import DataError

_MOST_SLOTS = 256


@contextlib.contextmanager
def region_prefix(folder: Path | None = None) -> Iterator[str]:
    """The begin of region names that no other living process uses, while the block lasts. The lock goes with the
    process, however that ends.

    Raises:
        DataError: all slots are taken, or their folder is another's.
    """
    place = folder or Path(tempfile.gettempdir()) / f"trioton-perf-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.is_symlink() or place.stat().st_uid != os.getuid():
        raise DataError(f"{place}: belongs to another user, so names of shared memory cannot be kept there")
    machine = hashlib.sha256(f"{socket.gethostname()}/{os.getuid()}/{place}".encode()).hexdigest()[:8]
    for number in range(_MOST_SLOTS):
        descriptor = os.open(place / f"slot-{number}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield f"trioton_perf_{machine}_{number}"
        finally:
            os.close(descriptor)
        return
    raise DataError(f"{place}: all {_MOST_SLOTS} slots for shared memory are taken")
