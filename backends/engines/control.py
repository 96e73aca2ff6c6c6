"""Control of an engine's worker: what is asked of it beside generations, as changes of its adapters.

Each question has a number, by which its answer finds it; whoever is cancelled while he waits for one leaves nothing
behind.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import trio

from backends.engines.worker.trioton_engine.frames import CONTROL, CONTROLLED
from backends.python.wire.channel import WorkerGone
from backends.python.wire.frames import Frame, decode_head, encode
from backends.python.wire.heads import Head
from backends.python.workers.link import WorkerLink


class Controlled(Head):
    """An answer. Without an `error` it was done; `adapters` are those that there are then, each with its folder."""

    number: int
    adapters: list[tuple[str, str]]
    error: str = ""


class _Asked:
    """A question without an answer."""

    __slots__ = ("answer", "at", "is_over")

    def __init__(self) -> None:
        self.at = trio.current_time()
        self.is_over = trio.Event()
        self.answer: Controlled | None = None


class WorkerControl:
    """Of one worker. `end` is called when nobody reads its answers any more."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._numbers = itertools.count()
        self._asked: dict[int, _Asked] = {}
        link.handlers[CONTROLLED] = self._take
        link.at_end.append(self.end)

    async def ask(self, do: str, **about: Any) -> Controlled:
        """Raises WorkerGone."""
        number = next(self._numbers)
        asked = self._asked[number] = _Asked()
        try:
            await self._link.channel.send(encode(CONTROL, {"number": number, "do": do, **about}))
            await asked.is_over.wait()
        finally:
            self._asked.pop(number, None)
        if asked.answer is None:
            raise WorkerGone(self._link.channel.problem)
        return asked.answer

    @property
    def owed_for(self) -> float:
        """For how many seconds the worker has owed an answer to somebody who waits for it; 0 where it owes none."""
        first = min((asked.at for asked in self._asked.values()), default=math.inf)
        return max(trio.current_time() - first, 0.0)

    def _take(self, frame: Frame) -> None:
        answer = decode_head(frame, Controlled)
        asked = self._asked.pop(answer.number, None)
        if asked is not None:  # else whoever asked has gone
            asked.answer = answer
            asked.is_over.set()

    def end(self) -> None:
        """Nothing is answered any more."""
        for asked in self._asked.values():
            asked.is_over.set()
        self._asked.clear()
