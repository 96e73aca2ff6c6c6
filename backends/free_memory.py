"""Garbage of this process: how often it is looked for, and freed heap memory that goes back to the system (glibc's
`malloc_trim`; elsewhere it stays).
"""

from __future__ import annotations

import ctypes
import gc
from dataclasses import dataclass, field

# Python looks for reference cycles after 700 objects more, which is after some requests. A request leaves none. To look
# at 2,000 takes one to two milliseconds where they are those of new connections.
_YOUNG = 2_000
# What has outlived that is not looked at by the way: 8,000 objects take 6 ms, and those of a thousand connections 80.
_NEVER = 1 << 30
_THRESHOLDS = (_YOUNG, _NEVER, _NEVER)


def collect_less() -> None:
    """What is there when a server has started is there for good, and need not be searched for garbage again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def _young_collections() -> int:
    """How many there have been in this process."""
    return int(gc.get_stats()[0]["collections"])


@dataclass(slots=True)
class NewObjects:
    """Those that have come while this exists. Python collects when there are 2,000 more than have gone: where others go
    meanwhile, as with models that are exchanged, 20,000 may be new until then, which takes 10 ms."""

    _collections: int = field(default_factory=_young_collections)
    _objects: int = 0

    def collect(self) -> None:
        """Look for garbage among the newest. To be called often."""
        self._objects += gc.get_count()[0]
        self._collections += 1
        gc.collect(0)

    def count(self) -> int:
        """How many more have come than have gone before a collection, about."""
        return self._objects + (_young_collections() - self._collections) * _YOUNG


def collects_less() -> bool:
    """Whether `collect_less` was called: to ask how much is frozen takes as long as there is much."""
    return gc.get_threshold() == _THRESHOLDS


def return_free_memory(has_frozen: bool = True) -> None:
    """Free what is held by reference cycles alone, and let the system have the pages that this process has freed and
    not given back. May be called in any thread; all others stand still for some ten milliseconds, and with `has_frozen`
    for up to some hundred: then what `collect_less` has frozen is looked at, too, and all that is left is frozen."""
    was_frozen = has_frozen and collects_less()
    if was_frozen:
        gc.unfreeze()
    gc.collect()
    if was_frozen:
        gc.freeze()
    trim_heap()


def trim_heap() -> None:
    """As `return_free_memory` without a look for garbage: some milliseconds, without the interpreter's lock."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
