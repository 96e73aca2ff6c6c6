"""Trimming of the C library's heap (glibc `malloc_trim`)."""

from __future__ import annotations

import sys


def trim_heap() -> None:
    """Give back to the system what is free, where the C library is one that can: glibc."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    except (ImportError, OSError, AttributeError):
        pass  # musl, which keeps little
