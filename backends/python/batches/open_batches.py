"""Table of the batches of one worker that have not ended, and how each ends: answered, failed or abandoned.

Flow: batches → [open batches: while anything is to come] → who waits for the batch.
"""

from __future__ import annotations

from contextlib import ExitStack

import trio

from backends.interface import BatchResult
from backends.python.batches.open_batch import OpenBatch
from backends.python.batches.worker_room import WorkerRoom
from backends.python.wire.channel import Channel
from protocol.errors import ServerError
from protocol.log.tags import Tags


class OpenBatches:
    """`room` is what they occupy in the worker."""

    def __init__(self, channel: Channel, *, concurrency: int, byte_limit: int) -> None:
        self.by_number: dict[int, OpenBatch] = {}
        self.room = WorkerRoom(channel, self.by_number, concurrency=concurrency, byte_limit=byte_limit)
        self._changed = trio.lowlevel.ParkingLot()
        self._watching = 0

    def find(self, number: int) -> OpenBatch | None:
        """The batch, if it is still open."""
        return self.by_number.get(number)

    def tags_of(self, number: int) -> Tags:
        """What log lines say of the requests of a batch that is still open."""
        batch = self.by_number.get(number)
        return {} if batch is None else batch.tags()

    def tags_now(self) -> Tags:
        """Those of the only request that is in the worker."""
        (batch,) = self.by_number.values() if len(self.by_number) == 1 else (None,)
        return batch.tags() if batch is not None and len(batch.requests) == 1 else {}

    @property
    def has_any(self) -> bool:
        """Whether any batch is open."""
        return bool(self.by_number)

    async def wait_changed(self) -> None:
        """Wait until `has_any` may have changed, or a call of the backend has ended."""
        self._watching += 1
        try:
            await self._changed.park()
        finally:
            self._watching -= 1

    def tell_changed(self) -> None:
        if self._watching:
            self._changed.unpark_all()

    def close(self, batch: OpenBatch, result: BatchResult | Exception | None = None) -> None:
        """Remove a batch that has ended, and report its result to its waiter, if there is one."""
        self.by_number.pop(batch.number, None)
        try:
            self.room.leave(batch)
            if self._watching:
                self._changed.unpark_all()
        finally:  # nobody else knows the batch any more
            if result is not None:
                if batch.done is not None:
                    batch.done(result)
                elif batch.executed is not None:
                    batch.result = result
                    batch.executed.set()

    def abandon(self, batch: OpenBatch) -> None:
        """The waiter has gone, but the worker has the batch still, unless it has answered in this moment."""
        self.room.withdraw(batch)
        batch.is_abandoned = True
        if batch.has_left:
            self.close(batch)

    def fail_open(self, error: ServerError) -> None:
        """End all batches that no task waits for, and all requests of decoupled ones: each, whatever another raises."""
        with ExitStack() as ends:
            for batch in reversed(self.by_number.values()):  # the last callback is called first
                for stream in batch.streams:
                    ends.callback(stream.fail, error)
                if batch.done is not None:
                    ends.callback(self.close, batch, error)

    def end(self) -> None:
        """The worker is gone."""
        for batch in self.by_number.values():
            if batch.execution is not None:
                batch.execution.is_running = False
            if batch.executed is not None:
                batch.executed.set()
        self.room.wake_all()
        self.tell_changed()
