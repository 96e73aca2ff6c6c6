"""Submission: a request in the hands of a scheduler, from when it is checked until its answer is there.

Flow: model → [submission] → scheduler. Made and held by who asks: a task that waits for the answer inside a `with`
block, or an edge that gets it by a call.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

import msgspec

from actors.mail.messages import Abandon, QueuedRequest, SchedulerAddress
from actors.model.call_waits import CalledModel
from actors.tracing.stamps import REQUEST_END
from protocol.errors import Cancelled, Unavailable
from protocol.messages import Caller, InferenceRequest


class Answers(Protocol):
    def close(self) -> None: ...


class Acceptance(Protocol):
    """Who counts the requests that are under way."""

    def answered(self, submission: Submission) -> None: ...


class Submission(msgspec.Struct, eq=False):
    """A checked request in the scheduler's hands. As a `with` block it is given up if that is left by an exception:
    cancelled, or the client cannot be answered any more. (A class, since a generator would double its cost on the main
    road.)"""

    _address: SchedulerAddress
    _item: QueuedRequest
    request: InferenceRequest
    # Told when it has ended, and under which model and version it has counted it; of those that no task waits for.
    acceptance: Acceptance | None = None
    accepted: tuple[str, int] = ("", 0)
    cancel_called: bool = False
    _caller: Caller | None = None
    _target: CalledModel | None = None

    @property
    def arrival(self) -> float:
        """Implements `protocol.core.Submitted`."""
        return self._item.arrival

    def __enter__(self) -> QueuedRequest:
        return self._item

    def begin_wait(self, caller: Caller, target: CalledModel) -> None:
        """Note who waits inside the server; raises ServerError if that would never end."""
        caller.begin_wait(target)
        self._caller, self._target = caller, target

    def end_wait(self) -> None:
        """The model has begun to answer, or never will."""
        if self._caller is not None:
            self._caller.end_wait(self._target)
            self._caller = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end()
        else:
            self.give_up()

    def end(self) -> None:
        """Implements `protocol.core.Submitted`."""
        try:
            if self._caller is not None:
                self.end_wait()
            item = self._item
            if item.turn is not None:
                item.turn.leave()
            trace = self.request.trace
            if trace is not None:
                trace.stamp(REQUEST_END)
        finally:  # the server waits for it when it ends
            if self.acceptance is not None:
                self.acceptance.answered(self)

    def give_up(self) -> None:
        """Implements `protocol.core.Submitted`."""
        self.end()
        self._abandon()

    def cancel(self) -> None:
        """Answer it with `Cancelled`, whatever its model does; not for one that has been answered."""
        self.cancel_called = True
        self._item.answer(cancelled(self.request.model_name, self.request.id))
        self._abandon()

    def _abandon(self) -> None:
        self._item.cancel()
        with suppress(Unavailable):
            self._address.send_nowait(Abandon(self._item))


def cancelled(model_name: str, request_id: str) -> Cancelled:
    return Cancelled(f"[request id: {request_id}] request to model '{model_name}' was cancelled")
