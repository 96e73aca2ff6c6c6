"""Garbage of this process: how often it is looked for, and freed heap memory that goes back to the system (glibc's
`malloc_trim`; elsewhere it stays).
"""

from __future__ import annotations

import ctypes
import gc

# Python looks for reference cycles after 700 objects more, which is after some requests. A request leaves none. To look
# at 2,000 takes half a millisecond; at what has outlived that, as the objects of many new connections do, three times
# as long. All are looked at as often as by 2,000, 10 and 25.
_THRESHOLDS = (2_000, 2, 95)


def collect_less() -> None:
    """What is there when a server has started is there for good, and need not be searched for garbage again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def collects_less() -> bool:
    """Whether `collect_less` was called: to ask how much is frozen takes as long as there is much."""
    return gc.get_threshold() == _THRESHOLDS


def return_free_memory(has_frozen: bool = True) -> None:
    """Free what is held by reference cycles alone, and let the system have the pages that this process has freed and
    not given back. May be called in any thread; all others stand still for some ten milliseconds, and with `has_frozen`
    for up to some hundred: then what was frozen is looked at, too, and all that is left is frozen."""
    was_frozen = has_frozen and gc.get_freeze_count() > 0
    if was_frozen:
        gc.unfreeze()
    gc.collect()
    if was_frozen:
        gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
