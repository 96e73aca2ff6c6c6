"""Readiness that has to be asked for: the models behind one name, all asked at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio


async def all_ready(checks: Sequence[Callable[[], Awaitable[bool]]]) -> bool:
    """Whether all say yes; returns with the first no, and gives the others up."""
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
