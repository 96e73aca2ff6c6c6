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

NEW_SECONDS = 0.05
# How often a process looks whether it has grown, and whether it is idle, in so many of the former.
GROWN_AFTER = 20
IDLE_AFTER = 200


async def collect_garbage() -> None:
    """Until cancelled. For a process that has called `collect_less`."""
    new, idleness = NewObjects(), Idleness()
    old = OldGarbage(new.count(), resident_bytes())
    for times in count(1):
        await trio.sleep(NEW_SECONDS)
        new.collect()
        if times % GROWN_AFTER:
            continue
        is_idle = times % IDLE_AFTER == 0 and idleness.look(now=time.monotonic(), cpu_seconds=time.process_time())
        objects = new.count()
        if old.is_due(objects, resident_bytes(), is_idle=is_idle):
            found = gc.collect()
            # Else what was garbage would count as used, and as much more might become garbage the next time.
            await trio.to_thread.run_sync(trim_heap)
            old.note(objects, resident_bytes(), found)
