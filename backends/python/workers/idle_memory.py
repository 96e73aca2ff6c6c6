"""Releases the memory that large batches have left, once a worker has been idle for a while.

Segments of shared memory and the heaps of both sides are kept between batches on purpose: to fetch and clear their
pages again costs more than all copies of the tensors. So only who has been idle gives back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio

from backends.python.wire.arena import Arena

logger = logging.getLogger("trioton.backends.python")

# Without a large batch for so long a worker is idle.
IDLE_SECONDS = 10.0


class IdleMemory:
    """For one worker: its segments, and what its own heap keeps, by `trim_worker`. `is_idle` tells whether it has no
    batch."""

    def __init__(self, arena: Arena, is_idle: Callable[[], bool], trim_worker: Callable[[], None]) -> None:
        self._arena = arena
        self._is_idle = is_idle
        self._trim_worker = trim_worker
        self._is_refused = False

    async def run(self) -> None:
        """Runs until cancelled, or until there is nothing to release."""
        if self._is_refused:
            return
        try:
            await self._run()
        except OSError as error:
            self._is_refused = True
            logger.warning("memory of large batches stays: the system does not take it back (%s)", error)

    async def _run(self) -> None:
        arena = self._arena
        trimmed = math.nan  # the uses at which the worker has been told
        while True:
            await arena.wait_used()
            uses = arena.uses
            await trio.sleep(IDLE_SECONDS)
            if arena.uses != uses or not self._is_idle() or not await arena.release(self._is_idle):
                continue
            if trimmed != uses:  # else a segment is still read, and nothing else has changed
                trimmed = uses
                self._trim_worker()
