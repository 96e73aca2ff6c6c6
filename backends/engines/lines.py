"""Lines of what waits for an engine: by priority and arrival, or also by turns of keys. Plain and synchronous."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

from protocol.quotas.fair_queue import FairQueue, FairShares, Holder

# What a token costs, by "Fairness in Serving Large Language Models": one that is generated takes a step of its own.
_PROMPT_TOKEN, _OUTPUT_TOKEN = 1.0, 2.0

T = TypeVar("T", bound=Hashable)


class PriorityLine(Generic[T]):
    """The lower priority first, then as they came."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._heap: list[tuple[int, int, T]] = []  # has those that are gone, until they come up
        self._places: dict[T, tuple[int, int, Holder, int]] = {}

    def add(self, item: T, holder: Holder, *, priority: int, tokens: int) -> None:
        """`tokens` are those of its prompt."""
        number = next(self._numbers)
        self._places[item] = number, priority, holder, tokens
        heapq.heappush(self._heap, (priority, number, item))

    def first(self) -> T | None:
        """The next one, which stays."""
        heap = self._heap
        while heap and not self._is_here(heap[0]):
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def take_first(self) -> None:
        """It is given to the engine."""
        del self._places[heapq.heappop(self._heap)[2]]

    def remove(self, item: T) -> None:
        """It waits no more."""
        del self._places[item]
        if len(self._heap) > 2 * len(self._places) + 64:
            self._heap = [entry for entry in self._heap if self._is_here(entry)]
            heapq.heapify(self._heap)

    def _is_here(self, entry: tuple[int, int, T]) -> bool:
        place = self._places.get(entry[2])
        return place is not None and place[0] == entry[1]

    def in_turns(self) -> TurnsLine[T]:
        """A line with turns, with all that waits here."""
        line: TurnsLine[T] = TurnsLine()
        for item, (_, priority, holder, tokens) in self._places.items():
            line.add(item, holder, priority=priority, tokens=tokens)
        return line


class TurnsLine(Generic[T]):
    """The lower priority first, then in turns of keys, by the tokens that each has used over its weight.
    The methods of the same names are those of `PriorityLine`."""

    def __init__(self) -> None:
        self._shares = FairShares(estimate=_PROMPT_TOKEN)
        self._queue: FairQueue[T] = FairQueue(self._shares)

    def add(self, item: T, holder: Holder, *, priority: int, tokens: int) -> None:
        self._queue.add(item, holder, rank=priority, size=tokens)

    def first(self) -> T | None:
        return next(iter(self._queue), None)

    def take_first(self) -> None:
        self._queue.take(1)

    def remove(self, item: T) -> None:
        self._queue.discard(item)

    def generated(self, holder: Holder, tokens: int) -> None:
        """The holder has been given so many."""
        self._shares.charge(holder, _OUTPUT_TOKEN * tokens)
