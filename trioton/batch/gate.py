"""Gate: lets any number of rows run beside each other, or one alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Gate:
    """Who wants to be alone waits until the others have left; meanwhile nobody else enters."""

    def __init__(self) -> None:
        self._running = 0
        self._lone = 0  # those that are alone, or wait for it
        self._changed = trio.Event()

    @asynccontextmanager
    async def passed(self, *, alone: bool) -> AsyncIterator[None]:
        """Enter, and leave at the end of the block."""
        if not alone:
            while self._lone:
                await self._changed.wait()
        else:
            self._lone += 1
            try:
                while self._running:
                    await self._changed.wait()
            except BaseException:
                self._lone -= 1
                self._wake()
                raise
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._lone -= alone
            if self._lone or alone:
                self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
