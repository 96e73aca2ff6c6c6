"""Memory that was freed goes back to the system, and what is in use stays as it is."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from backends.free_memory import return_free_memory

CHUNK = 64 << 10
COUNT = 1600  # 100 MiB


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_what_was_freed_goes_back() -> None:
    """All but every hundredth piece is freed: the rest would keep the heap from shrinking."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    pieces = [library.malloc(CHUNK) for _ in range(COUNT)]
    for number, piece in enumerate(pieces):
        ctypes.memset(piece, number % 256, CHUNK)
    for number, piece in enumerate(pieces):
        if number % 100:
            library.free(piece)
    before = resident()
    return_free_memory()
    kept = pieces[::100]
    assert before - resident() > COUNT * CHUNK // 2
    assert [ctypes.string_at(piece, 1)[0] for piece in kept] == [number % 256 for number in range(0, COUNT, 100)]
    for piece in kept:
        library.free(piece)
