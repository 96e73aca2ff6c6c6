"""Tuning of glibc malloc: freed memory of large tensors is kept for the next ones (M_TRIM_THRESHOLD).

As it is, it gives memory at the end of its heap back to the system when twice a tensor's size is free there, and
fetches it again for the next request: a page fault for every 4 KiB, each of which the kernel clears. With some requests
in flight that costs more than all copies of their tensors.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import trio

from trioton.idleness import Idleness

# What the heap keeps at its end, at most. Beyond it, and for single blocks of more, all goes back to the system.
KEPT_BYTES = 64 << 20
LARGEST_KEPT_BLOCK = 32 << 20

# How often a server looks whether it is idle.
LOOK_SECONDS = 10.0
# Growth of the process that is worth giving back when it is idle, and at any time: much of what threads free is kept in
# pieces, and a job of many large rows would let it grow with each of them.
_WORTH_BYTES = 16 << 20
_MUCH_BYTES = 256 << 20

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_OPERATORS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """For the whole process, so for whoever owns it. Whether the allocator takes it: glibc's, unless the operator has
    set it up by the environment."""
    if sys.platform != "linux" or any(name in os.environ for name in _OPERATORS_OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl's
        return False
    # One without the other would make the largest kept block 128 KiB.
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


@dataclass(slots=True)
class IdleTrim:
    """When to give back what is kept: the process has grown since it did so last, and is idle, or has grown by much."""

    _idleness: Idleness = field(default_factory=Idleness)
    _floor: int = 0  # bytes; what the process has when nothing more can be given back

    def is_due(self, *, now: float, cpu_seconds: float, resident: int) -> bool:
        """To be asked at intervals, with the processor time that the process has used, and its memory."""
        is_idle = self._idleness.look(now=now, cpu_seconds=cpu_seconds)
        return resident - self._floor >= (_WORTH_BYTES if is_idle else _MUCH_BYTES)

    def trimmed(self, resident: int) -> None:
        """It has been done."""
        self._floor = resident


async def give_back_when_idle() -> None:
    """Until cancelled. For the process that has called `keep_freed_memory`."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    policy = IdleTrim()
    while trim is not None and resident_bytes():
        await trio.sleep(LOOK_SECONDS)
        if policy.is_due(now=time.monotonic(), cpu_seconds=time.process_time(), resident=resident_bytes()):
            await trio.to_thread.run_sync(trim, 0)  # some milliseconds, without the interpreter's lock
            policy.trimmed(resident_bytes())


def resident_bytes() -> int:
    """Of this process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0
