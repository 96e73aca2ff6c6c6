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
from protocol.messages import InferenceRequest
from protocol.server_settings import Trace


class BatchSlot(Inbox[Execute]):
    """Where an instance runs one batch at a time. What the backend cannot begin by a call is left for the place's task,
    as is what comes while a batch runs."""

    __slots__ = ("_begin", "address", "free", "is_busy")

    def __init__(
        self,
        name: str,
        begin: Callable[[BatchSlot, Execute], bool],
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
        elif self._messages or not self._begin(self, message):
            super().send_nowait(message)

    def leave(self, message: Execute) -> None:
        """To the task, though it seemed to be begun."""
        self.is_busy = False
        self._messages.appendleft(message)
        self.wake()

    def go_on(self) -> None:
        """Its batch has ended; begin what has come meanwhile."""
        self.is_busy = False
        if self._messages:
            message = self._messages.popleft()  # before it is begun: that may be all of it, and come here again
            try:
                is_begun = self._begin(self, message)
            except Exception:
                self._messages.appendleft(message)
                self.wake()
                raise
            if not is_begun:
                self._messages.appendleft(message)
                self.wake()


class RunningBatch(msgspec.Struct, eq=False):
    """A batch that the backend has. `batch` are those of the message that are run, `requests` what they ask, and
    `traces` those of them that are traced. `started` is in seconds of Trio's clock."""

    place: BatchSlot
    message: Execute
    batch: Sequence[QueuedRequest]
    requests: Sequence[InferenceRequest]
    traces: Sequence[Trace]
    started: float


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
