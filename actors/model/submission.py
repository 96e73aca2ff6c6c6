"""Handles of submitted requests, by which their submitter ends or cancels them.

Flow: core → servable → [submission] → core → edge. There is one class for each state that a request can be in behind
`protocol.core.InferenceCore.submit`: queued by a scheduler, waiting in a task (`actors.model.deferred`), forwarded to
another model (`actors.model.traffic_split`), or refused, which is the base class. Its submitter owns it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeAlias

import msgspec
import trio

from actors.mail.messages import Abandon, QueuedRequest, SchedulerAddress
from actors.mail.reply_slot import ReplySlot
from actors.model.call_waits import CalledModel
from actors.model.request_counts import RequestCount
from actors.tracing.stamps import REQUEST_END, TENSOR_BACKEND_OUTPUT
from protocol.core import ReplyChannel
from protocol.errors import Cancelled, ServerError, Unavailable
from protocol.messages import Caller, InferenceRequest, InferenceResponse
from protocol.server_settings import Trace

Submit: TypeAlias = Callable[[InferenceRequest, ReplyChannel], "Submission"]


class Acceptance(Protocol):
    """The counter of requests in flight."""

    def answered(self, submission: Submission) -> None: ...


class Submission(msgspec.Struct, eq=False):
    """One request in progress, or one that was refused: nothing is left to be given up. Implements
    `protocol.core.Submitted`. `acceptance` is notified when it has ended; it counts it in `accepted`."""

    request: InferenceRequest
    arrival: float
    acceptance: Acceptance | None = None
    accepted: RequestCount | None = None
    cancel_called: bool = False

    def end(self) -> None:
        """Implements `protocol.core.Submitted`."""
        if self.acceptance is not None:
            self.acceptance.answered(self)

    def give_up(self) -> None:
        """Implements `protocol.core.Submitted`."""
        self.end()
        self.abandon()

    def cancel(self) -> None:
        """Have it answered with `Cancelled`, whatever its model does, unless its answer is there; `end` or `give_up`
        still has to be called."""
        self.cancel_called = True

    def abandon(self) -> None:
        """Cancel the request: no reply is sent from now on, and what has not begun will not."""


class QueuedSubmission(Submission, kw_only=True):
    """A checked request that a scheduler has. As a `with` block it is given up if that is left by an exception:
    cancelled, or the client cannot be answered any more."""

    _address: SchedulerAddress
    item: QueuedRequest
    _caller: Caller | None = None
    _target: CalledModel | None = None

    def __enter__(self) -> QueuedRequest:
        return self.item

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end()
        else:
            self.give_up()

    def begin_wait(self, caller: Caller, target: CalledModel) -> None:
        """Record what waits inside the server; raises ServerError if that wait would never end."""
        caller.begin_wait(target)
        self._caller, self._target = caller, target

    def end_wait(self) -> None:
        """The model has begun to answer, or never will."""
        if self._caller is not None:
            self._caller.end_wait(self._target)
            self._caller = None

    def end(self) -> None:
        try:
            if self._caller is not None:
                self.end_wait()
            item = self.item
            if item.turn is not None:
                item.turn.leave()
            trace = self.request.trace
            if trace is not None:
                trace.stamp(REQUEST_END)
        finally:  # the server waits for it when it ends
            if self.acceptance is not None:
                self.acceptance.answered(self)

    def cancel(self) -> None:
        self.cancel_called = True
        with suppress(trio.WouldBlock):  # the answer is there, and its taker has not run yet
            self.item.answer(cancelled(self.request))
        self.abandon()

    def abandon(self) -> None:
        self.item.cancel()
        with suppress(Unavailable):
            self._address.send_nowait(Abandon(self.item))


class TracedReply(msgspec.Struct, eq=False):
    """Records the outputs of a traced request on their way to `reply_to`. Implements `protocol.core.ReplyChannel`."""

    reply_to: ReplyChannel
    trace: Trace

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        if isinstance(value, InferenceResponse):
            self.trace.record_tensors(TENSOR_BACKEND_OUTPUT, value.outputs)
        self.reply_to.send_nowait(value)


async def submit_and_wait(submit: Submit, request: InferenceRequest) -> InferenceResponse:
    """The answer to a request. Cancelled, the request is given up.

    Raises:
        ServerError: the request was answered with it.
    """
    slot = ReplySlot()
    submission = submit(request, slot)
    try:
        reply = await slot.receive()
    except BaseException:
        submission.give_up()
        raise
    submission.end()
    if isinstance(reply, ServerError):
        raise reply.with_traceback(None)  # one error may answer many requests
    return reply


def refused(request: InferenceRequest, reply_to: ReplyChannel, error: ServerError) -> Submission:
    """Answer a request with an error at once."""
    reply_to.send_nowait(error)
    return Submission(request, trio.current_time())


def cancelled(request: InferenceRequest) -> Cancelled:
    return Cancelled(f"[request id: {request.id}] request to model '{request.model_name}' was cancelled")
