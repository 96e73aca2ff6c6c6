"""Generation: what all edges have to see of the core at once, in shared memory: counters that move whenever what they
have kept of one of its models, of all, or of the clients' keys, may be wrong, and whether requests are traced.

A few pages per core, which writes them; each edge process maps them, and compares before it answers from what it keeps.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import zlib
from typing import TypeAlias

_COUNT = struct.Struct("=Q")
# The place of the one that moves with each of the others.
_CHANGES = 3 * _COUNT.size
# Each model has one of so many counters. Those that share one only make edges ask once more.
_MODEL_COUNTS = 4096
_SIZE = mmap.PAGESIZE + _MODEL_COUNTS * _COUNT.size

ModelCounts: TypeAlias = tuple[int, int]
"""How often what is known of all models has changed, and of one model. Only whether two are the same says anything."""


class Generation:
    """The core's side. Owned by who owns the core; closed by it, when no link is left."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("trioton-generation", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, _SIZE)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self.descriptor, _SIZE)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._count = 0
        self._changes = 0
        self.keys = 0  # how many sets of keys there were before those in force

    def bump(self) -> None:
        """What was kept of any model is asked for again. Takes no time that counts."""
        self._count += 1
        _COUNT.pack_into(self._map, 0, self._count)
        self._note_change()

    def bump_model(self, name: str) -> None:
        """What was kept of the model that edges ask for by this name is asked for again."""
        place = _place_of(name)
        _COUNT.pack_into(self._map, place, _COUNT.unpack_from(self._map, place)[0] + 1)
        self._note_change()

    def _note_change(self) -> None:
        self._changes += 1
        _COUNT.pack_into(self._map, _CHANGES, self._changes)

    def bump_keys(self) -> None:
        """Other keys are in force from now on."""
        self.keys += 1
        _COUNT.pack_into(self._map, _COUNT.size, self.keys)

    def set_traced(self, is_on: bool, *, follows_context: bool = False) -> None:
        """Whether requests may have to be traced from now on, which the core decides for each; and if it wants to see
        the context that clients give."""
        _COUNT.pack_into(self._map, 2 * _COUNT.size, is_on | follows_context << 1)

    def close(self) -> None:
        self._map.close()
        os.close(self.descriptor)


class SeenGeneration:
    """An edge's view of it. The descriptor is the caller's, and may be closed afterwards."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _SIZE, prot=mmap.PROT_READ)

    def of_model(self, name: str) -> ModelCounts:
        """With the empty name, of all models together."""
        if not name:
            return _COUNT.unpack_from(self._map, _CHANGES)[0], 0
        return _COUNT.unpack_from(self._map)[0], _COUNT.unpack_from(self._map, _place_of(name))[0]

    def keys(self) -> int:
        found: int = _COUNT.unpack_from(self._map, _COUNT.size)[0]
        return found

    def is_traced(self) -> bool:
        return bool(self._traced() & 1)

    def follows_context(self) -> bool:
        return bool(self._traced() & 2)

    def _traced(self) -> int:
        found: int = _COUNT.unpack_from(self._map, 2 * _COUNT.size)[0]
        return found

    def close(self) -> None:
        self._map.close()


def _place_of(name: str) -> int:
    return mmap.PAGESIZE + zlib.crc32(name.encode("utf-8", "replace")) % _MODEL_COUNTS * _COUNT.size
