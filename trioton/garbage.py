"""Collections of garbage that has outlived the frequent ones: when the server has little else to do.

To look at all that a thousand connections hold takes 80 ms in one go, so Python does not do it by the way
(`backends.free_memory`).
"""

from __future__ import annotations

import gc
import time

import trio

from backends.free_memory import OldGarbage, young_collections
from trioton.allocator import resident_bytes
from trioton.idleness import Idleness

LOOK_SECONDS = 10.0


async def collect_old_garbage() -> None:
    """Until cancelled. For a process that has called `collect_less`."""
    idleness, policy = Idleness(), OldGarbage(young_collections(), resident_bytes())
    while True:
        await trio.sleep(LOOK_SECONDS)
        is_idle = idleness.look(now=time.monotonic(), cpu_seconds=time.process_time())
        collections = young_collections()
        if policy.is_due(collections, resident_bytes(), is_idle=is_idle):
            found = gc.collect()
            policy.note(collections, resident_bytes(), found)
