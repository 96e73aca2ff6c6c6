"""A caller whose model takes as long as a function says, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from trioton.perf.caller import Call, Payload, Result, Take
from trioton.perf.clock import TrioClock

SECOND = 1_000_000_000


class FakeCaller:
    """Implements `Caller`. `took(number, now)` is how many seconds the request takes from its sending; `late` how long
    it takes to send it. A text that `fails` returns is its error."""

    def __init__(
        self,
        nursery: trio.Nursery,
        took: Callable[[int, float], float],
        *,
        late: float = 0.0,
        fails: Callable[[int], str] = lambda _: "",
    ) -> None:
        self.sent: list[float] = []
        self.abandoned = 0
        self._nursery, self._took, self._late, self._fails = nursery, took, late, fails
        self._clock = TrioClock()

    def encode(self, payload: Payload) -> Any:
        return payload

    def send(self, call: Call, planned: int, take: Take) -> None:
        number = len(self.sent)
        self.sent.append(trio.current_time())
        self._nursery.start_soon(self._answer, number, call, planned, take)

    async def _answer(self, number: int, call: Call, planned: int, take: Take) -> None:
        await trio.sleep(self._late)
        sent = self._clock.now()
        seconds = self._took(number, trio.current_time())
        if seconds:
            await trio.sleep(seconds)
        now = self._clock.now()
        take(Result(call, planned, sent, now, now, error=self._fails(number)))

    def flush(self) -> None:
        pass

    def abandon(self) -> None:
        self.abandoned += 1
