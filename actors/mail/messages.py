"""The messages between actors: frozen structs, except for the queued request, which has state.

Structs of msgspec: a frozen dataclass takes seven times as long to make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec
import trio

from actors.mail.reply_slot import Reply
from actors.mail.turns import Turn
from actors.mail.waiting_responses import WaitingResponses
from backends.interface import BatchTiming
from protocol.core import ReplyChannel
from protocol.errors import ServerError, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse

# Requests with equal keys may share a batch: the shapes without the batch dimension, in the configuration's order.
ShapeKey: TypeAlias = tuple[tuple[int, ...] | None, ...] | None


class QueuedRequest(msgspec.Struct, eq=False):
    """A request on its way through a model. `arrival` is in seconds of Trio's clock.

    Its caller sets `is_cancelled` when it gives up; whoever holds the request then may drop it. `failure` is why a
    stream of responses ended early. `turn` is its position among requests whose streams are ordered. `watcher` runs the
    request, and is notified when its caller gives up. `response_count` is how many responses a stream has had so far.
    `take_states` takes from each response of a stream what is for the scheduler; an error that it returns ends the
    stream. `is_for_nobody` marks a padding row of a batch. `waiting` counts the responses of a stream that its caller
    has not taken; while there are none `respond_at_once` may take one past the reply channel, as that of
    `protocol.core.RespondsAtOnce`. `expected_seconds` of compute time were charged to its key when it was taken from a
    queue in turns.
    """

    request: InferenceRequest
    batch_size: int
    shape_key: ShapeKey
    arrival: float
    reply: ReplyChannel
    is_cancelled: bool = False
    failure: ServerError | None = None
    turn: Turn | None = None
    watcher: Callable[[QueuedRequest], None] | None = None
    response_count: int = 0
    take_states: Callable[[InferenceResponse], ServerError | None] | None = None
    is_for_nobody: bool = False
    waiting: WaitingResponses | None = None
    respond_at_once: Callable[[InferenceResponse], bool] | None = None
    expected_seconds: float = 0.0

    @property
    def stream(self) -> trio.MemorySendChannel[Reply]:
        """Where the responses of a decoupled model go."""
        assert isinstance(self.reply, trio.MemorySendChannel)
        return self.reply

    def cancel(self) -> None:
        """The caller has given up."""
        self.is_cancelled = True
        if self.watcher is not None:
            self.watcher(self)

    def answer(self, reply: Reply) -> None:
        """Send the only reply to the caller, if it is still there. Never waits: the reply slot has room for it."""
        if not self.is_cancelled:
            self.reply.send_nowait(reply)


class Execute(msgspec.Struct, frozen=True):
    """To a model instance: run this batch. With `keeps_rows` requests whose callers have gone are kept, since a
    request's row in the batch has a meaning."""

    batch: Sequence[QueuedRequest]
    keeps_rows: bool = False


class BatchInbox(Protocol):
    """The inbox of a model instance for batches."""

    def send_nowait(self, message: Execute) -> None:
        """Raises trio.BrokenResourceError once it is closed."""

    def close(self) -> None:
        """Finish the batches that were sent, and unload."""


class InstanceAddress(msgspec.Struct, frozen=True, eq=False):
    """The address of a loaded model instance; one that runs several batches at once has one for each, all with its
    `name`. It has at most the batch that it runs and the next, so its `inbox` is never full. `prefetch` makes it take
    the next one while it runs one; None where that waits in the inbox."""

    name: str
    inbox: BatchInbox
    prefetch: Callable[[], None] | None = None


class Submit(msgspec.Struct, frozen=True):
    """To a scheduler: a checked request."""

    item: QueuedRequest


class Abandon(msgspec.Struct, frozen=True):
    """To a scheduler: the caller of this request has gone."""

    item: QueuedRequest


class InstanceReady(msgspec.Struct, frozen=True):
    """To a scheduler: this instance is loaded and idle."""

    instance: InstanceAddress


class InstanceGone(msgspec.Struct, frozen=True):
    """To a scheduler: this instance is gone and takes no more batches. Sent for each of its addresses."""

    instance: InstanceAddress


class RestartDelayed(msgspec.Struct, frozen=True):
    """To a scheduler: no instance is being restarted now, so requests need not wait for one."""


class RemoveInstance(msgspec.Struct, frozen=True):
    """To a scheduler: have the instance of this name finish its batches and end; others replace it."""

    name: str


class BatchDone(msgspec.Struct, frozen=True):
    """To a scheduler: the instance has run what it was `given`, less those whose callers had gone, and is idle or
    (`is_alive` false) takes no more by this address: it has another one, or (`has_died`) is gone. `timing` is None
    where the batch as a whole failed; `started` is when the instance took it, in seconds of Trio's clock. A decoupled
    model's requests are answered by their streams, and `replies` is None."""

    instance: InstanceAddress
    given: Execute
    batch: Sequence[QueuedRequest]
    replies: Sequence[Reply] | None
    started: float
    timing: BatchTiming | None
    is_alive: bool = True
    has_died: bool = False


class StreamEnded(msgspec.Struct, frozen=True):
    """To a scheduler: a request to a decoupled model has had its last response, or its error. `first_response` is when
    the first one left, in seconds of Trio's clock. The error `Rescheduled` ends only a round of an iterative sequence,
    and `NotBegun` gives the request back: its reply channel stays open."""

    item: QueuedRequest
    error: ServerError | None
    first_response: float | None


class Drain(msgspec.Struct, frozen=True):
    """To a scheduler: accept no more requests, finish those that it has, then end. With `lets_sequences_end` requests
    of open sequences are accepted, until each has ended or timed out."""

    lets_sequences_end: bool = False


SchedulerMessage: TypeAlias = (
    Submit | Abandon | InstanceReady | InstanceGone | RestartDelayed | RemoveInstance | BatchDone | StreamEnded | Drain
)


class SchedulerAddress(msgspec.Struct, frozen=True):
    """The address of a scheduler. `send_nowait` handles a message before it returns, and never waits. It raises
    Unavailable if the scheduler has ended. Requests may be answered within the call (see `actors.scheduling.base`)."""

    send_nowait: Callable[[SchedulerMessage], None]
    # As sending `Submit`, but batches are dispatched only when `flush` is called, which must follow soon.
    submit: Callable[[QueuedRequest], None]
    flush: Callable[[], None]


class StoppedAccepting(Unavailable):
    """The model drains: it did not take the request; a version that has replaced it may."""


def stopped_accepting() -> StoppedAccepting:
    return StoppedAccepting("Server is stopping, scheduler for model has stopped accepting new inference requests")
