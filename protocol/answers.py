"""Answers that actors give to an edge by a call: one task takes all that are there, and each goes to its connection.

    actor -> [answers] -> connection -> client

So the actors go on with the next batch before the answers of the last one are encoded and sent, and many answers cost
one turn of the loop.
"""

from __future__ import annotations

from typing import Protocol

from protocol.wakeup import Wakeup


class Answered(Protocol):
    def deliver(self) -> None:
        """Send the answer; must not wait, and raises nothing."""


class Answers:
    """Of one edge. `run` is its one task."""

    __slots__ = ("_arrived", "_ready")

    def __init__(self) -> None:
        self._ready: list[Answered] = []
        self._arrived = Wakeup()

    def put(self, answered: Answered) -> None:
        if not self._ready:
            self._arrived.wake()
        self._ready.append(answered)

    async def run(self) -> None:
        while True:
            while not self._ready:
                await self._arrived.wait()
            ready, self._ready = self._ready, []
            for answered in ready:
                answered.deliver()
