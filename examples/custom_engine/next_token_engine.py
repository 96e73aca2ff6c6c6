"""An engine in 60 lines: after each token comes the one that a table says, for all generations at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from trioton.engines import Engine, EngineInfo, EngineModel, Event, Generation, Refused, Stats


class NextTokenEngine(Engine):
    """Its table is `next.json`, in the version's folder: the token behind each token, by their ids."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[Generation, int]] = {}  # with the last token of each
        self._made: dict[int, int] = {}
        self._aborted: list[int] = []

    def load(self, model: EngineModel) -> EngineInfo:
        if model.options:
            raise ValueError(f"there is no option '{min(model.options)}'")
        table = json.loads(Path(model.directory, "next.json").read_text())
        self._next = {int(token): following for token, following in table.items()}
        return EngineInfo(features=frozenset({"stop_token_ids", "temperature"}))

    def submit(self, generation: Generation) -> None:
        last = generation.token_ids[-1]
        if last not in self._next:
            raise Refused(f"nothing comes behind token {last}")
        self._running[generation.sequence] = (generation, last)
        self._made[generation.sequence] = 0

    def abort(self, sequence: int) -> None:
        if self._running.pop(sequence, None) is not None:
            self._aborted.append(sequence)

    def step(self, wake: int) -> Sequence[Event]:
        events = [Event(sequence, finish="abort") for sequence in self._aborted]
        self._aborted.clear()
        for sequence, (generation, last) in list(self._running.items()):
            token = self._next[last]
            self._made[sequence] += 1
            sampling = generation.sampling
            is_stop = token in sampling.stop_token_ids or token not in self._next
            finish = "stop" if is_stop else "length" if self._made[sequence] >= sampling.max_tokens else ""
            events.append(Event(sequence, (token,), finish, token if is_stop else None))
            if finish:
                del self._running[sequence], self._made[sequence]
            else:
                self._running[sequence] = (generation, token)
        return events

    def stats(self) -> Stats:
        return Stats(running=len(self._running))

    def close(self) -> None:
        self._running.clear()
