"""Cancellation of requests that a backend has: passes on to it that a caller has gone.

Flow: caller → queued request → [cancellation] → backend. Owned by the batch runner, which makes `cancelled` the watcher
of each request that it gives to the backend, and takes it off at the end. Notices are calls; none is an error to
anybody: what a backend raises is logged and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from actors.mail.messages import QueuedRequest
from backends.interface import Backend


@dataclass(eq=False, slots=True)
class CancellationNotices:
    """`Backend.cancel` for the requests of one instance; `failed` gets what that raises."""

    backend: Backend
    failed: Callable[[Exception], None]

    def cancelled(self, batch: Sequence[QueuedRequest], item: QueuedRequest) -> None:
        """The caller of `item` has gone. With the last one of its batch, all of the batch is cancelled."""
        try:
            if all(each.is_cancelled for each in batch):  # those too that had gone before the batch began
                for each in batch:
                    self.backend.cancel(each.request)
            else:
                self.backend.cancel(item.request)
        except Exception as error:
            self.failed(error)

    def cancelled_before(self, batch: Sequence[QueuedRequest]) -> bool:
        """Notify of each caller that had gone before its batch began, where the batch keeps rows; whether there is
        one."""
        gone = [item for item in batch if item.is_cancelled and not item.is_for_nobody]
        for item in gone:
            self.cancelled(batch, item)
        return bool(gone)

    async def repeat_soon(self, batch: Sequence[QueuedRequest]) -> None:
        """As `cancelled_before`, once the backend has been awaited for the batch, if it still runs."""
        await trio.lowlevel.checkpoint()
        if batch[0].watcher is not None:
            self.cancelled_before(batch)
