"""Releases free heap memory to the system (glibc `malloc_trim`).

Linux with glibc only: elsewhere nothing is done.
"""

from __future__ import annotations

import ctypes
import gc


def return_free_memory() -> None:
    """Free what is held by reference cycles alone, also of what was frozen at the start, and let the system have the
    pages that this process has freed and not given back. Takes some ten milliseconds, and may be called in any
    thread."""
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if was_frozen:
        gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
