"""Random schedules, one for each seed: how many, and how those of actors run under virtual time.

`TRIOTON_RANDOM_SCHEDULES` sets how many are tried.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock

MOST_SECONDS = 1000.0  # of virtual time; nothing takes so long unless somebody is forgotten
# Side by side: that is cheaper than a run of Trio for each, and no schedule sees another.
_AT_ONCE = 50


def schedule_count(default: int) -> int:
    return int(os.environ.get("TRIOTON_RANDOM_SCHEDULES", str(default)))


def run_schedules(count: int, run: Callable[[int], Awaitable[None]]) -> None:
    """Run the schedule of each seed from 0; one that fails is named."""
    for first in range(0, count, _AT_ONCE):
        seeds = range(first, min(first + _AT_ONCE, count))
        trio.run(_run_all, seeds, run, clock=MockClock(autojump_threshold=0))


async def _run_all(seeds: range, run: Callable[[int], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        for seed in seeds:
            nursery.start_soon(_run_named, seed, run)


async def _run_named(seed: int, run: Callable[[int], Awaitable[None]]) -> None:
    try:
        await run(seed)
    except Exception as error:
        raise AssertionError(f"schedule {seed}") from error
