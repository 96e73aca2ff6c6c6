"""A quota store of this process: the rules of the script, in Python, by Trio's clock."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from actors.quotas.exchange import StoreAway
from protocol.quotas.shared import Push


class Levels:
    """Implements `actors.quotas.exchange.QuotaStore`. `is_away` makes it fail; `clear` loses all it has."""

    def __init__(self) -> None:
        self.is_away = False
        self.calls = 0
        self.is_closed = False
        self._kept: dict[str, tuple[float, float]] = {}

    def clear(self) -> None:
        self._kept.clear()

    async def exchange(self, pushes: Sequence[Push]) -> Sequence[float]:
        await trio.sleep(0.001)
        self.calls += 1
        if self.is_away:
            raise StoreAway("nobody is there")
        return [self.add(push, trio.current_time()) for push in pushes]

    def add(self, push: Push, now: float) -> float:
        level = push.base
        if push.name in self._kept:
            before, at = self._kept[push.name]
            level = max(0.0, before - (now - at) * push.rate)
        raised = max(0.0, level + push.delta)
        if push.most is not None and raised > push.most:
            raised = max(level, push.most)
        self._kept[push.name] = raised, now
        return raised

    async def close(self) -> None:
        self.is_closed = True
