"""Sleep of one engine: its state, and who attends to its worker while there is one.

Owned by the backend. An engine that cannot sleep in its process has none while it sleeps; the task that attends to the
worker then waits for the next one. Changes are made one at a time, and the end of the instance ends the one that is
under way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVarTuple

import trio

from protocol.errors import Unavailable

Ts = TypeVarTuple("Ts")


class Attend(Protocol):
    """Attends to a worker until it has ended."""

    async def __call__(self, *, task_status: trio.TaskStatus[None]) -> None: ...


class EngineSleep:
    """`level` is 0 while requests are taken, and from then on as `sleep` was called; `is_settled` when it sleeps."""

    def __init__(self, instance: str) -> None:
        self.level = 0
        self.is_settled = False
        self._instance = instance
        self._lock = trio.Lock()
        self._change: trio.CancelScope | None = None
        self._is_over = False
        self._first: trio.TaskStatus[None] | None = None
        self._attention: trio.CancelScope | None = None
        self._attended, self._unattended, self._woken = trio.Event(), trio.Event(), trio.Event()

    async def change(self, work: Callable[[*Ts], Awaitable[None]], *args: *Ts) -> None:
        """Fall asleep or wake up. Raises what `work` raises, and Unavailable where the instance ends meanwhile."""
        async with self._lock:
            if not self._is_over:
                with trio.CancelScope() as self._change:
                    await work(*args)
                    return
        raise Unavailable(f"model instance '{self._instance}' was unloaded")

    async def end(self) -> None:
        """End a change that is under way; there is none from now on."""
        self._is_over = True
        if self._change is not None:
            self._change.cancel()
        async with self._lock:
            pass

    # The task that attends to the worker.

    def tell(self, task_status: trio.TaskStatus[None]) -> None:
        """Of the task, when it attends to its first worker."""
        self._first = task_status

    async def attend(self, attend: Attend) -> bool:
        """Attend to a worker; False if it has ended by itself."""
        self._unattended = trio.Event()
        try:
            with trio.CancelScope() as self._attention:
                await attend(task_status=self)
            return self._attention.cancelled_caught
        finally:
            self._attention = None
            self._unattended.set()

    def started(self, value: None = None) -> None:
        """As a task status: the worker is attended to."""
        self._attended.set()
        if self._first is not None:
            first, self._first = self._first, None
            first.started()

    async def wait_woken(self) -> None:
        """Until there is a worker again."""
        await self._woken.wait()
        self._woken = trio.Event()

    # What a change asks of it.

    async def leave(self) -> None:
        """Have nobody attend to the worker, so that it can be stopped."""
        if self._attention is not None:
            self._attention.cancel()
            await self._unattended.wait()

    async def attend_again(self) -> None:
        """There is a new worker; returns when it is attended to."""
        self._attended = trio.Event()
        self._woken.set()
        await self._attended.wait()
