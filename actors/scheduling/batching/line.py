"""Queues of the dynamic batcher: the requests of one shape, in the order in which batches take them.

Ordered sets, so that a request is removed in constant time wherever it stands, as clients that go away require.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Protocol

from actors.mail.messages import QueuedRequest


class BatchLine(Protocol):
    """Requests that may share a batch, by rank (the lower first) and within a rank as they were added."""

    def add(self, item: QueuedRequest, rank: int) -> None: ...

    def discard(self, item: QueuedRequest) -> bool:
        """Take a request out; False if it is not here."""

    def take(self, count: int) -> list[QueuedRequest]:
        """Take out the first `count` requests."""

    def place(self) -> tuple[int, float]:
        """Where a line that is not empty stands among the others: its first request's rank and arrival."""

    def oldest(self) -> float:
        """The arrival of the request that has waited longest."""

    def __iter__(self) -> Iterator[QueuedRequest]: ...

    def __len__(self) -> int: ...


class PlainLine(dict[QueuedRequest, None]):
    """Requests that all have the same rank."""

    __slots__ = ()

    def add(self, item: QueuedRequest, rank: int) -> None:
        self[item] = None

    def discard(self, item: QueuedRequest) -> bool:
        return self.pop(item, self) is None

    def take(self, count: int) -> list[QueuedRequest]:
        if count == len(self):
            taken = list(self)
            self.clear()
        else:
            taken = list(islice(self, count))
            for item in taken:
                del self[item]
        return taken

    def place(self) -> tuple[int, float]:
        return 0, next(iter(self)).arrival

    def oldest(self) -> float:
        return next(iter(self)).arrival


def rank_of(level: int, *, is_late: bool = False) -> int:
    """The rank of a priority level's requests; those that are late come behind the others of their level."""
    return 2 * level + is_late


class RankedLine:
    """Requests of any ranks. Within a rank they are in order of arrival, but late ones as they became late."""

    __slots__ = ("_ranks",)

    def __init__(self) -> None:
        self._ranks: dict[int, PlainLine] = {}  # none of them empty

    def add(self, item: QueuedRequest, rank: int) -> None:
        self._ranks.setdefault(rank, PlainLine())[item] = None

    def discard(self, item: QueuedRequest) -> bool:
        for rank, members in self._ranks.items():
            if members.discard(item):
                if not members:
                    del self._ranks[rank]
                return True
        return False

    def take(self, count: int) -> list[QueuedRequest]:
        taken = list(islice(self, count))
        for item in taken:
            self.discard(item)
        return taken

    def place(self) -> tuple[int, float]:
        rank = min(self._ranks)
        return rank, self._ranks[rank].oldest()

    def oldest(self) -> float:
        return min(
            min(item.arrival for item in members) if rank % 2 else members.oldest()
            for rank, members in self._ranks.items()
        )

    def __iter__(self) -> Iterator[QueuedRequest]:
        return chain.from_iterable(self._ranks[rank] for rank in sorted(self._ranks))

    def __len__(self) -> int:
        return sum(map(len, self._ranks.values()))
