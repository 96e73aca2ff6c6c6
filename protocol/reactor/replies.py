"""Replies: the queue in which actors leave the replies of an edge, delivered together in bursts.

Flow: actor -> [replies] -> connection -> client

So actors begin the next batch before the replies of the last one are encoded and sent, and many replies to a connection
leave in one write. Each edge owns one, and runs it in a task of its nursery; what is not delivered when that is
cancelled is dropped with its connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
import trio

from protocol.core import Submitted
from protocol.errors import ServerError
from protocol.failures import CallbackFailures
from protocol.log.failure_log import FailedRequest
from protocol.messages import InferenceResponse
from protocol.sync.wakeup import Wakeup


class Answered(Protocol):
    def deliver(self) -> None:
        """Send the reply; must not wait."""

    def fail(self, error: Exception) -> None:
        """`deliver` has raised this, a defect: end what waits for the reply, with an error where that can still be
        sent."""


class Replies:
    """The queue of one edge. `run` delivers what is put outside a burst; a caller that puts many calls `begin_burst`
    and `end_burst`, which delivers them. An exception in the delivery of one ends that one, and is counted in
    `failures`."""

    __slots__ = ("_arrived", "_bursts", "_failures", "_last", "_ready", "left")

    def __init__(self, failures: CallbackFailures | None = None) -> None:
        self._failures = failures or CallbackFailures()
        self._ready: list[Answered] = []
        self._last: list[tuple[Callable[[], None], Callable[[Exception], None]]] = []
        self._arrived = Wakeup()
        self._bursts = 0  # in each other: what is delivered may bring more
        self.left = 0  # to be delivered behind the one that is

    def put(self, answered: Answered) -> None:
        """Deliver a reply at the end of the burst, or else by the task."""
        if not (self._ready or self._bursts):
            self._arrived.wake()
        self._ready.append(answered)

    def begin_burst(self) -> None:
        self._bursts += 1

    def end_burst(self) -> None:
        """Deliver all that was put, unless a surrounding burst will do that."""
        try:
            if self._bursts == 1 and self._ready:
                self._deliver()
        finally:
            self._bursts -= 1

    def call_last(self, call: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """To be used while an answer is delivered: call when all that are there have been. `failed` is told what that
        raises, a defect."""
        self._last.append((call, failed))

    async def run(self) -> None:
        while True:
            while not self._ready:
                await self._arrived.wait()
            self.begin_burst()
            self.end_burst()

    def _deliver(self) -> None:
        while True:
            while self._ready:
                ready, self._ready = self._ready, []
                self.left = len(ready)
                for answered in ready:
                    self.left -= 1
                    try:
                        answered.deliver()
                    except Exception as error:
                        self._fail(answered.fail, error)
            if not self._last:
                return
            last, self._last = self._last, []  # which may end what others wait for
            for call, failed in last:
                try:
                    call()
                except Exception as error:
                    self._fail(failed, error)

    def _fail(self, failed: Callable[[Exception], None], error: Exception) -> None:
        self._failures.note("delivery", error, "an answer could not be sent, and its request or connection ends")
        try:
            failed(error)
        except Exception as another:
            self._failures.note("delivery", another, "what waits for an answer could not be ended")


def describe_pending(pending: PendingReply) -> FailedRequest:
    """What the log says of a request that is answered with an error: by what was submitted as long as it is held, and
    else by its response, which could not be sent."""
    submitted, reply = pending.submitted, pending.reply
    if submitted is not None:
        return FailedRequest.of(submitted.request, trio.current_time() - submitted.arrival)
    if isinstance(reply, InferenceResponse):
        return FailedRequest(reply.model_name, str(reply.model_version), reply.id)
    return FailedRequest()


class PendingReply(msgspec.Struct, eq=False):
    """A request whose reply comes by a callback. Implements `protocol.core.ReplyChannel`; an edge defines its
    delivery."""

    replies: Replies
    reply: InferenceResponse | ServerError | None = None
    submitted: Submitted | None = None

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        if self.reply is None:
            self.reply = value
            self.replies.put(self)

    @property
    def own_id(self) -> str:
        """The protocol's own `id`, which its answer repeats."""
        if self.submitted is not None:
            return self.submitted.request.id
        return self.reply.id if isinstance(self.reply, InferenceResponse) else ""

    def let_go(self) -> Submitted:
        """What was submitted, to be ended or given up, once. The two know each other: a cycle, which would keep all
        tensors of the request until it is collected."""
        assert self.submitted is not None
        submitted, self.submitted = self.submitted, None
        return submitted

    def deliver(self) -> None:
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        raise NotImplementedError
