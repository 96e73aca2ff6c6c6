"""Batch slot: the inbox through which a model instance is given its batches, one at a time.

Flow: scheduler → [batch slot] → batch runner. Its `address` is what the scheduler knows of the instance. An instance
has one slot, and a further one for as long as it runs batches beside each other; it opens and closes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import trio

from actors.mail.inbox import Inbox
from actors.mail.messages import Execute, InstanceAddress, QueuedRequest
from backends.interface import BatchResult
from protocol.messages import InferenceRequest
from protocol.server_settings import Trace


class BatchSlot(Inbox[Execute]):
    """An inbox whose messages are handled by a call (`begin`) while the slot is idle.

    `begin` takes the message, or gives it to the slot's task by `leave_to_task`; the slot is busy until `begin_next`,
    and messages queue meanwhile. Without a `begin` the task receives every message. The message that the task receives
    next is one for a call, too, if it `is_put_off`.
    """

    __slots__ = ("_begin", "address", "free", "is_busy", "is_put_off")

    def __init__(
        self,
        name: str,
        begin: Callable[[BatchSlot, Execute], None] | None,
        free: Callable[[BatchSlot], None],
        prefetch: Callable[[BatchSlot], None] | None,
    ) -> None:
        super().__init__()
        self.is_busy = False
        self.is_put_off = False
        self.free = partial(free, self)
        self.address = InstanceAddress(name, self, None if prefetch is None else partial(prefetch, self))
        self._begin = begin

    def send_nowait(self, message: Execute) -> None:
        if self._is_closed:
            raise trio.BrokenResourceError
        if self.is_busy:
            self._messages.append(message)
        elif self._messages or self._begin is None:
            super().send_nowait(message)
        else:
            self.is_busy = True
            self._begin(self, message)

    def leave_to_task(self, message: Execute) -> None:
        """Queue a message that cannot be handled by a call, in front, and wake the task."""
        self.is_busy = False
        self._messages.appendleft(message)
        self.wake()

    def put_off(self, message: Execute) -> None:
        """Leave a message to the task for its time only: a call can handle it."""
        self.is_put_off = True
        self.leave_to_task(message)

    def begin_next(self) -> None:
        """The batch of this slot has ended: handle the next message, if one is queued. What `begin` raises leaves the
        message to the task."""
        self.is_busy = False
        if not self._messages:
            return
        if self._begin is None:
            self.wake()
            return
        self.is_busy = True
        message = self._messages.popleft()
        try:
            self._begin(self, message)
        except Exception:
            self.leave_to_task(message)
            raise


class RunningBatch(msgspec.Struct, eq=False):
    """A batch between the moment when it is taken from its slot and its report.

    `batch` are those requests of the message that are run, `requests` the same as the backend gets them, `traces` those
    of the traced ones. `started` is in seconds of Trio's clock, `begun_ns` of the monotonic clock. `result` is how it
    has ended, as long as that is not reported.
    """

    slot: BatchSlot
    message: Execute
    batch: Sequence[QueuedRequest]
    requests: Sequence[InferenceRequest]
    traces: Sequence[Trace]
    started: float
    begun_ns: int = 0
    result: BatchResult | Exception | None = None


def running_batch(slot: BatchSlot, message: Execute, now: float) -> RunningBatch:
    """The batch of a message, without the requests whose callers have gone unless it keeps its rows."""
    batch: list[QueuedRequest] = []
    requests: list[InferenceRequest] = []
    traces: list[Trace] = []
    keeps_rows = message.keeps_rows
    for item in message.batch:
        if keeps_rows or not item.is_cancelled:
            request = item.request
            batch.append(item)
            requests.append(request)
            if request.trace is not None:
                traces.append(request.trace)
    return RunningBatch(slot, message, batch, requests, traces, now)
