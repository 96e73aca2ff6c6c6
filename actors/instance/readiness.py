"""Concurrent readiness checks of what stands behind one name: instances, versions, steps of an ensemble."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio


async def all_ready(checks: Sequence[Callable[[], Awaitable[bool]]]) -> bool:
    """Whether all checks say yes; the first no cancels the others."""
    if len(checks) == 1:
        return await checks[0]()
    is_ready = True

    async def ask(check: Callable[[], Awaitable[bool]]) -> None:
        nonlocal is_ready
        if not await check():
            is_ready = False
            asked.cancel_scope.cancel()

    async with trio.open_nursery() as asked:
        for check in checks:
            asked.start_soon(ask, check)
    return is_ready
