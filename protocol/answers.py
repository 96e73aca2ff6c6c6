"""Answers that actors give to an edge by a call: one task takes all that are there, and each goes to its connection.

    actor -> [answers] -> connection -> client

So the actors go on with the next batch before the answers of the last one are encoded and sent, and many answers cost
one turn of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from protocol.core import Submitted
from protocol.errors import ServerError
from protocol.messages import InferenceResponse
from protocol.wakeup import Wakeup


class Answered(Protocol):
    def deliver(self) -> None:
        """Send the answer; must not wait, and raises nothing."""


class Answers:
    """Of one edge. `run` is its one task."""

    __slots__ = ("_arrived", "_last", "_ready")

    def __init__(self) -> None:
        self._ready: list[Answered] = []
        self._last: list[Callable[[], None]] = []
        self._arrived = Wakeup()

    def put(self, answered: Answered) -> None:
        if not self._ready:
            self._arrived.wake()
        self._ready.append(answered)

    def call_last(self, call: Callable[[], None]) -> None:
        """To be used while an answer is delivered: call when all that are there have been."""
        self._last.append(call)

    async def run(self) -> None:
        while True:
            while not self._ready:
                await self._arrived.wait()
            ready, self._ready = self._ready, []
            for answered in ready:
                answered.deliver()
            self._call_last()

    def deliver(self, answered: Answered) -> None:
        """At once, within the actor's call."""
        answered.deliver()
        if self._last:
            self._call_last()

    def _call_last(self) -> None:
        last, self._last = self._last, []
        for call in last:
            call()


class Awaited(msgspec.Struct, eq=False):
    """A request whose answer comes by a call. Implements `protocol.core.AnswerTo`; an edge says how it is delivered."""

    answers: Answers
    reply: InferenceResponse | ServerError | None = None
    submitted: Submitted | None = None

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        if self.reply is not None:
            return
        self.reply = value
        if self.is_alone and self.submitted is not None:
            self.answers.deliver(self)
        else:
            self.answers.put(self)

    def let_go(self) -> Submitted:
        """What was submitted, to be ended or given up, once. The two know each other: a circle, which would keep all
        tensors of the request until it is collected."""
        assert self.submitted is not None
        submitted, self.submitted = self.submitted, None
        return submitted

    @property
    def is_alone(self) -> bool:
        """Whether its answer would not share a write with others if it waited."""
        return True

    def deliver(self) -> None:
        raise NotImplementedError
