"""Deferred requests: those that must wait for more than the queue, each in a task of its own.

Flow: servable → [deferred request] → scheduler, cache, composing models … → reply. What they wait for is a look-up in
the response cache, a look at many texts, a deadline, a copy from a device, an ensemble's steps, or a lease under the
memory budget.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import trio

from actors.mail.reply_slot import Reply
from actors.model.submission import Submission, cancelled, refused
from protocol.core import ReplyChannel
from protocol.errors import Internal, ServerError, Unavailable
from protocol.failures import CallbackFailures
from protocol.messages import InferenceRequest, InferenceResponse


class DeferredRequest(Submission, kw_only=True):
    """A request that is answered by a task. Given up, or cancelled by its id, its scope is cancelled, and the task ends
    soon after, without a reply."""

    reply_to: ReplyChannel
    scope: trio.CancelScope = msgspec.field(default_factory=trio.CancelScope)
    is_over: bool = False

    def cancel(self) -> None:
        self.cancel_called = True
        self.answer(cancelled(self.request))
        self.scope.cancel()

    def abandon(self) -> None:
        self.is_over = True
        self.scope.cancel()

    def answer(self, reply: Reply) -> None:
        """Send the reply, once; ignored when it is not wanted any more."""
        if not self.is_over:
            self.is_over = True
            self.reply_to.send_nowait(reply)


class DeferredRequests:
    """The deferred requests of one owner, in its nursery between `open` and `close`. `owner` is how errors name it. If
    the nursery is cancelled they are answered with Unavailable. A defect is answered with Internal, and counted."""

    def __init__(self, owner: str, failures: CallbackFailures) -> None:
        self._owner = owner
        self._failures = failures
        self._nursery: trio.Nursery | None = None

    @property
    def is_open(self) -> bool:
        return self._nursery is not None

    def open(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def close(self) -> None:
        """Accept no more; the nursery waits for those in progress."""
        self._nursery = None

    def submit(
        self,
        request: InferenceRequest,
        reply_to: ReplyChannel,
        answer: Callable[[InferenceRequest], Awaitable[InferenceResponse]],
    ) -> Submission:
        """Have `answer` called in a task, and what it returns or raises sent to `reply_to`."""
        if self._nursery is None:
            return refused(request, reply_to, Unavailable(f"{self._owner} takes no requests now"))
        deferred = DeferredRequest(request, trio.current_time(), reply_to=reply_to)
        self._nursery.start_soon(self._run, deferred, answer)
        return deferred

    async def _run(
        self, deferred: DeferredRequest, answer: Callable[[InferenceRequest], Awaitable[InferenceResponse]]
    ) -> None:
        if deferred.is_over:
            return
        reply: Reply = Unavailable(f"{self._owner} was stopped before the request was finished")
        try:
            with deferred.scope:
                reply = await answer(deferred.request)
        except ServerError as error:
            reply = error.with_traceback(None)  # which would hold this frame, and so the answer itself
        except Exception as error:
            self._failures.note("request", error, f"{self._owner} failed, and with it a request")
            reply = Internal(f"{self._owner} failed unexpectedly; the server's log has the details")
        finally:
            self._send(deferred, reply)

    def _send(self, deferred: DeferredRequest, reply: Reply) -> None:
        try:
            with suppress(trio.WouldBlock):  # cancelled by its id at that moment
                deferred.answer(reply)
        except Exception as error:
            self._failures.note("request", error, f"{self._owner} could not answer a request")
