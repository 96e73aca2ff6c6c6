"""Collections of garbage beside Python's own: of new objects often, and of old ones when the server has little to do.

To look at all that a thousand connections hold takes 80 ms in one go, so Python does not do it by the way
(`backends.free_memory`).
"""

from __future__ import annotations

import gc
import time

import trio

from backends.free_memory import NewObjects, OldGarbage
from trioton.allocator import resident_bytes
from trioton.idleness import Idleness

NEW_SECONDS = 0.05
LOOK_SECONDS = 10.0


async def collect_garbage() -> None:
    """Until cancelled. For a process that has called `collect_less`."""
    new, idleness = NewObjects(), Idleness()
    old = OldGarbage(new.count(), resident_bytes())
    while True:
        for _ in range(round(LOOK_SECONDS / NEW_SECONDS)):
            await trio.sleep(NEW_SECONDS)
            new.collect()
        is_idle = idleness.look(now=time.monotonic(), cpu_seconds=time.process_time())
        objects = new.count()
        if old.is_due(objects, resident_bytes(), is_idle=is_idle):
            found = gc.collect()
            old.note(objects, resident_bytes(), found)
