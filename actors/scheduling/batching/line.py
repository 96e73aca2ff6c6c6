"""Queues of the dynamic batcher: the requests of one shape, in the order in which batches take them.

Ordered sets, so that a request is removed in constant time wherever it stands, as clients that go away require.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Protocol

from actors.mail.messages import QueuedRequest
from protocol.quotas.fair_queue import NOBODY, FairQueue, FairShares, Holder


class BatchLine(Protocol):
    """Requests that may share a batch, by rank (the lower first) and within a rank as they were added."""

    def add(self, item: QueuedRequest, rank: int) -> None: ...

    def discard(self, item: QueuedRequest) -> bool:
        """Take a request out; False if it is not here."""

    def take(self, count: int) -> list[QueuedRequest]:
        """Take out the first `count` requests."""

    def place(self) -> tuple[int, float, float]:
        """Where a line that is not empty stands among the others: its first request's rank, what the key has used that
        has its turn, and the request's arrival."""

    def oldest(self) -> float:
        """The arrival of the request that has waited longest."""

    def ranked(self) -> Iterable[tuple[int, QueuedRequest]]:
        """All requests with their ranks, within a rank as they were added."""

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

    def place(self) -> tuple[int, float, float]:
        return 0, 0.0, next(iter(self)).arrival

    def oldest(self) -> float:
        return next(iter(self)).arrival

    def ranked(self) -> Iterable[tuple[int, QueuedRequest]]:
        return ((0, item) for item in self)


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

    def place(self) -> tuple[int, float, float]:
        rank = min(self._ranks)
        return rank, 0.0, self._ranks[rank].oldest()

    def ranked(self) -> Iterable[tuple[int, QueuedRequest]]:
        return ((rank, item) for rank, members in self._ranks.items() for item in members)

    def oldest(self) -> float:
        return min(
            min(item.arrival for item in members) if rank % 2 else members.oldest()
            for rank, members in self._ranks.items()
        )

    def __iter__(self) -> Iterator[QueuedRequest]:
        return chain.from_iterable(self._ranks[rank] for rank in sorted(self._ranks))

    def __len__(self) -> int:
        return sum(map(len, self._ranks.values()))


class FairLine:
    """Requests of any ranks. Within a rank keys take turns, by the compute time that each has used over its weight."""

    __slots__ = ("_queue",)

    def __init__(self, shares: FairShares) -> None:
        self._queue: FairQueue[QueuedRequest] = FairQueue(shares)

    def add(self, item: QueuedRequest, rank: int) -> None:
        self._queue.add(item, holder_of(item), rank=rank, size=item.batch_size)

    def discard(self, item: QueuedRequest) -> bool:
        return self._queue.discard(item)

    def take(self, count: int) -> list[QueuedRequest]:
        taken = self._queue.take(count)
        for item, expected in taken:
            item.expected_seconds = expected
        return [item for item, _ in taken]

    def place(self) -> tuple[int, float, float]:
        return self._queue.lowest_rank(), self._queue.first_used(), next(iter(self._queue)).arrival

    def oldest(self) -> float:
        return min(
            min(item.arrival for item in members) if rank % 2 else next(iter(members)).arrival
            for rank, members in self._queue.lines()
        )

    def ranked(self) -> Iterable[tuple[int, QueuedRequest]]:
        return ((rank, item) for rank, members in self._queue.lines() for item in members)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


def holder_of(item: QueuedRequest) -> Holder:
    """Whose share a request is taken from."""
    charge = item.request.charge
    return NOBODY if charge is None else charge.account


def wants_turns(item: QueuedRequest) -> bool:
    """Whether keys have weights, by a request that comes from one."""
    charge = item.request.charge
    return charge is not None and charge.account.weight > 0
