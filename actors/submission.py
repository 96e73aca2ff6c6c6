"""Submission: a request in the hands of a scheduler, from when it is checked until its answer is there.

Flow: model → [submission] → scheduler. Made and held by the caller's task.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from actors.call_waits import CalledModel
from actors.messages import Abandon, QueuedRequest, SchedulerAddress
from actors.tracing.stamps import REQUEST_END
from protocol.errors import Unavailable
from protocol.messages import Caller


class Answers(Protocol):
    def close(self) -> None: ...


class Submission:
    """A checked request in the scheduler's hands, given up if the block is left by an exception: cancelled, or the
    client cannot be answered any more. (A class, since a generator would double its cost on the main road.)"""

    __slots__ = ("_address", "_answers", "_caller", "_item", "_target")

    def __init__(self, address: SchedulerAddress, item: QueuedRequest, answers: Answers) -> None:
        self._address = address
        self._item = item
        self._answers = answers
        self._caller: Caller | None = None
        self._target: CalledModel | None = None

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
        self._answers.close()
        if self._caller is not None:
            self.end_wait()
        if self._item.turn is not None:
            self._item.turn.leave()
        trace = self._item.request.trace
        if trace is not None:
            trace.stamp(REQUEST_END)
        if kind is not None:
            self._item.cancel()
            with suppress(Unavailable):
                self._address.tell(Abandon(self._item))
