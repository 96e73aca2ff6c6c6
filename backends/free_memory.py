"""Giving memory back to the system: what a model has freed, the C library keeps for later, and for each thread apart.

Linux with glibc only: elsewhere nothing is done.
"""

from __future__ import annotations

import ctypes


def return_free_memory() -> None:
    """Let the system have the pages that this process has freed and not given back. Takes milliseconds, and may be
    called in any thread."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
