"""The C library's allocator, told to keep what large tensors free for the next ones.

As it is, it gives memory at the end of its heap back to the system when twice a tensor's size is free there, and
fetches it again for the next request: a page fault for every 4 KiB, each of which the kernel clears. With some requests
in flight that costs more than all copies of their tensors.
"""

from __future__ import annotations

import ctypes
import os
import sys

# What the heap keeps at its end, at most. Beyond it, and for single blocks of more, all goes back to the system.
KEPT_BYTES = 64 << 20
LARGEST_KEPT_BLOCK = 32 << 20

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
