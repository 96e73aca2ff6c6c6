"""Collections of garbage beside Python's own: of new objects often, and of old ones when the server has little to do.

To look at all that a thousand connections hold takes 80 ms in one go, so Python does not do it by the way
(`backends.free_memory`).
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from itertools import count

import trio

from backends.free_memory import NewObjects, trim_heap
from protocol.limits.request_memory import RequestMemory
from protocol.open_connections import OpenConnections
from trioton.allocator import resident_bytes
from trioton.idleness import Idleness
from trioton.old_garbage import Held, OldGarbage, Usage

# How often new objects are looked at, where there are some, and where that takes no longer than a few do.
NEW_SECONDS = 0.05
FEW_NEW_SECONDS = 0.25
_FEW_TAKE_SECONDS = 0.0001
# How often a process looks whether it has grown, and in so many of these whether it is idle.
LOOK_SECONDS = 1.0
IDLE_AFTER = 10


def held_for_clients(connections: OpenConnections, memory: RequestMemory) -> Held:
    return Held(sum(sum(each) for each in connections.counts().values()), memory.held)


async def collect_garbage(held: Callable[[], Held]) -> None:
    """Until cancelled. For a process that has called `collect_less`; `held` is what it has for its clients."""
    new, idleness = NewObjects(), Idleness()
    old = OldGarbage(_usage(new))
    idleness.look(now=time.monotonic(), cpu_seconds=time.process_time())  # of the time before it says nothing
    for looks in count(1):
        await _collect_new(new, LOOK_SECONDS)
        is_idle = looks % IDLE_AFTER == 0 and idleness.look(now=time.monotonic(), cpu_seconds=time.process_time())
        usage = _usage(new)
        if not old.is_due(usage, held, is_idle=is_idle):
            continue
        if not old.is_short(usage):
            # What is free and was not given back is no garbage.
            await trio.to_thread.run_sync(trim_heap)
            usage = _usage(new)
            if not old.is_due(usage, held, is_idle=is_idle):
                continue
        began = time.perf_counter()
        found = gc.collect()
        seconds = time.perf_counter() - began
        # Else what was garbage would count as used, and as much more might become garbage the next time.
        await trio.to_thread.run_sync(trim_heap)
        old.note(usage, _usage(new), found, seconds)


def _usage(new: NewObjects) -> Usage:
    return Usage(new.count(), resident_bytes(), sys.getallocatedblocks())


async def _collect_new(new: NewObjects, seconds: float) -> None:
    """For so long."""
    end, pause = trio.current_time() + seconds, FEW_NEW_SECONDS
    while (now := trio.current_time()) < end:
        await trio.sleep(min(pause, end - now))
        began = time.perf_counter()
        new.collect()
        pause = FEW_NEW_SECONDS if time.perf_counter() - began < _FEW_TAKE_SECONDS else NEW_SECONDS
