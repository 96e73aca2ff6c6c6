"""The place of a batch in a model instance: it is begun there by a call, or waits there for a task.

Flow: scheduler → [place] → model instance. A place is what the scheduler has the address of. An instance has one, and
more while it runs batches beside each other.
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
    """Where an instance runs one batch at a time; what comes while a batch runs waits for its end. What cannot be begun
    by a call (`begin` leaves it) is for the slot's task, as is everything where `begin` is None."""

    __slots__ = ("_begin", "address", "free", "is_busy")

    def __init__(
        self,
        name: str,
        begin: Callable[[BatchSlot, Execute], None] | None,
        free: Callable[[BatchSlot], None],
        prefetch: Callable[[BatchSlot], None] | None,
    ) -> None:
        super().__init__()
        self.is_busy = False
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

    def leave(self, message: Execute) -> None:
        """The first one, to the task."""
        self.is_busy = False
        self._messages.appendleft(message)
        self.wake()

    def go_on(self) -> None:
        """Its batch has ended: begin the next one, if that is here already."""
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
            self.leave(message)
            raise


class RunningBatch(msgspec.Struct, eq=False):
    """A batch that the backend has. `batch` are those of the message that are run, `requests` what they ask, and
    `traces` those of them that are traced. `started` is in seconds of Trio's clock, `begun` in nanoseconds of the
    monotonic one. `result` is its end, where that has not been reported yet."""

    place: BatchSlot
    message: Execute
    batch: Sequence[QueuedRequest]
    requests: Sequence[InferenceRequest]
    traces: Sequence[Trace]
    started: float
    begun: int = 0
    result: BatchResult | Exception | None = None


def running_batch(place: BatchSlot, message: Execute, now: float) -> RunningBatch:
    """What is run of a message."""
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
    return RunningBatch(place, message, batch, requests, traces, now)
