"""Collections of garbage beside Python's own: of new objects often, and of old ones when the server has little to do.

To look at all that a thousand connections hold takes 80 ms in one go, so Python does not do it by the way
(`backends.free_memory`).
"""

from __future__ import annotations

import gc
import time
from itertools import count

import trio

from backends.free_memory import NewObjects, OldGarbage, trim_heap
from trioton.allocator import resident_bytes
from trioton.idleness import Idleness

# How often new objects are looked at, where there are some, and where that takes no longer than a few do.
NEW_SECONDS = 0.05
FEW_NEW_SECONDS = 0.25
_FEW_TAKE_SECONDS = 0.0001
# How often a process looks whether it has grown, and in so many of these whether it is idle.
LOOK_SECONDS = 1.0
IDLE_AFTER = 10


async def collect_garbage() -> None:
    """Until cancelled. For a process that has called `collect_less`."""
    new, idleness = NewObjects(), Idleness()
    old = OldGarbage(new.count(), resident_bytes())
    for looks in count(1):
        await _collect_new(new, LOOK_SECONDS)
        is_idle = looks % IDLE_AFTER == 0 and idleness.look(now=time.monotonic(), cpu_seconds=time.process_time())
        objects = new.count()
        if old.is_due(objects, resident_bytes(), is_idle=is_idle):
            found = gc.collect()
            # Else what was garbage would count as used, and as much more might become garbage the next time.
            await trio.to_thread.run_sync(trim_heap)
            old.note(objects, resident_bytes(), found)


async def _collect_new(new: NewObjects, seconds: float) -> None:
    """For so long."""
    end, pause = trio.current_time() + seconds, FEW_NEW_SECONDS
    while (now := trio.current_time()) < end:
        await trio.sleep(min(pause, end - now))
        began = time.perf_counter()
        new.collect()
        pause = FEW_NEW_SECONDS if time.perf_counter() - began < _FEW_TAKE_SECONDS else NEW_SECONDS
