"""Fair queueing: a queue in which holders of shares take turns by what each has used, over its weight. Plain policies.

Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with the virtual time of start-time fair
queueing in place of the least counter, so that joining takes constant time.

    1. Each holder has a counter of what it has used over its weight. Of those that have something waiting, the one with
       the least goes next; among equals the one whose item came first.
    2. A holder that has nothing waiting saves nothing up: when it comes again, its counter is lifted to that with which
       the last item was taken.
    3. An item is charged by an estimate when it is taken, so that those of one batch take turns, too, and what it has
       cost is settled when that is known.
    4. A lower rank goes first, whatever was used.

With one holder in a rank it is a plain queue.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

# What the last cost counts for in the estimate of the next.
_NEWEST = 0.1
# Holders without anything waiting that are remembered when nobody waits.
_MOST_IDLE = 64

T = TypeVar("T", bound=Hashable)


class Holder(Protocol):
    """Who shares: an account. Compared by identity."""

    @property
    def weight(self) -> float: ...


class _Nobody:
    """The holder of what belongs to no key."""

    weight = 1.0


NOBODY: Holder = _Nobody()


class FairShares:
    """What each holder has used, in any unit. Remembers those that have something waiting, and those that have used
    more than they, until nobody waits.

    Attributes:
        estimate: what an item of size 1 is expected to cost.
    """

    __slots__ = ("_level", "_used", "_waiting", "estimate")

    def __init__(self, estimate: float = 0.0) -> None:
        self.estimate = estimate
        self._level = 0.0  # virtual time: the counter with which the last item was taken
        self._used: dict[Holder, float] = {}
        self._waiting: dict[Holder, int] = {}

    def __len__(self) -> int:
        return len(self._used)

    def used(self, holder: Holder) -> float:
        """Over its weight, and counted from a common time."""
        return self._used.get(holder, self._level)

    def counters_of(self, holders: Iterable[Holder], known: Mapping[Holder, float]) -> list[float]:
        """What each has used, or what is `known` of it in place of that."""
        used, level = self._used, self._level
        return [known[each] if each in known else used.get(each, level) for each in holders]

    def join(self, holder: Holder) -> None:
        """One more item of the holder waits."""
        waiting = self._waiting.get(holder, 0)
        self._waiting[holder] = waiting + 1
        if not waiting and self.used(holder) <= self._level:
            self._used[holder] = self._level

    def leave(self, holder: Holder) -> None:
        """One item less waits."""
        waiting = self._waiting[holder] - 1
        if waiting:
            self._waiting[holder] = waiting
        else:
            del self._waiting[holder]
            if self.used(holder) <= self._level:
                self._used.pop(holder, None)
            if not self._waiting and len(self._used) > _MOST_IDLE:
                self._used.clear()

    def take(self, holder: Holder, size: float) -> float:
        """An item of the holder, which waits, is taken; returns what it is expected to cost, and charged."""
        self._level = max(self._level, self.used(holder))
        expected = size * self.estimate
        self.charge(holder, expected)
        if len(self._used) > 2 * len(self._waiting) + _MOST_IDLE:
            self._used = {
                each: used for each, used in self._used.items() if each in self._waiting or used > self._level
            }

        return expected

    def charge(self, holder: Holder, cost: float) -> None:
        """Charge what is known to be used, or, below 0, known not to be."""
        self._used[holder] = self.used(holder) + cost / (holder.weight or 1.0)

    def learn(self, cost: float) -> None:
        """What an item of size 1 has cost."""
        self.estimate = self.estimate + _NEWEST * (cost - self.estimate) if self.estimate else cost


class _Place(msgspec.Struct, frozen=True):
    """Where an item is, and in which order it came."""

    rank: int
    holder: Holder
    size: float
    number: int


class FairQueue(Generic[T]):
    """The items of one line; several lines may have the same shares."""

    __slots__ = ("_numbers", "_places", "_ranks", "_shares")

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self._numbers = itertools.count()
        self._places: dict[T, _Place] = {}
        # By rank and holder, as they came; none of them empty.
        self._ranks: dict[int, dict[Holder, dict[T, None]]] = {}

    def add(self, item: T, holder: Holder, *, rank: int = 0, size: float = 1) -> None:
        self._places[item] = _Place(rank, holder, size, next(self._numbers))
        self._ranks.setdefault(rank, {}).setdefault(holder, {})[item] = None
        self._shares.join(holder)

    def discard(self, item: T) -> bool:
        """Take an item out, which costs nothing; False if it is not here."""
        place = self._places.pop(item, None)
        if place is None:
            return False
        holders = self._ranks[place.rank]
        members = holders[place.holder]
        del members[item]
        if not members:
            del holders[place.holder]
            if not holders:
                del self._ranks[place.rank]
        self._shares.leave(place.holder)
        return True

    def take(self, count: int = 1) -> list[tuple[T, float]]:
        """Take out the first `count` items, each with what its holder is charged for it until its cost is known."""
        taken = []
        for item in list(itertools.islice(self, count)):
            place = self._places[item]
            taken.append((item, self._shares.take(place.holder, place.size)))
            self.discard(item)
        return taken

    def lowest_rank(self) -> int:
        """That of the first item; the queue is not empty."""
        return min(self._ranks)

    def first_used(self) -> float:
        """What the holder of the first item has used."""
        return min(map(self._shares.used, self._ranks[self.lowest_rank()]))

    def lines(self) -> Iterator[tuple[int, dict[T, None]]]:
        """The items of each holder in each rank, as they came."""
        for rank, holders in self._ranks.items():
            for members in holders.values():
                yield rank, members

    def __iter__(self) -> Iterator[T]:
        """In the order in which they would be taken."""
        used: dict[Holder, float] = {}
        for rank in sorted(self._ranks):
            holders = self._ranks[rank]
            if len(holders) == 1:
                for holder, members in holders.items():
                    yield from self._alone(members, holder, used)
            else:
                yield from self._in_turns(holders, used)

    def _alone(self, members: dict[T, None], holder: Holder, used: dict[Holder, float]) -> Iterator[T]:
        yield from members
        size = sum(self._places[item].size for item in members) if len(self._ranks) > 1 else 0
        used[holder] = self._after(holder, size, used)

    def _in_turns(self, holders: dict[Holder, dict[T, None]], used: dict[Holder, float]) -> Iterator[T]:
        places = self._places
        counters = self._shares.counters_of(holders, used)
        firsts = [next(iter(members)) for members in holders.values()]
        # Numbers differ, so what stands behind them is never compared.
        heap = [
            (counter, places[item].number, holder, item)
            for counter, holder, item in zip(counters, holders, firsts, strict=True)
        ]
        heapq.heapify(heap)
        following: dict[Holder, Iterator[T]] = {}  # of those that had their turn
        while heap:
            _, _, holder, item = heap[0]
            yield item
            used[holder] = self._after(holder, places[item].size, used)
            if holder not in following:
                following[holder] = itertools.islice(holders[holder], 1, None)
            after = next(following[holder], None)
            if after is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (used[holder], places[after].number, holder, after))

    def _after(self, holder: Holder, size: float, used: dict[Holder, float]) -> float:
        """What a holder will have used when it has got items of this size."""
        before = used.get(holder)
        if before is None:
            before = self._shares.used(holder)
        return before + size * self._shares.estimate / (holder.weight or 1.0)

    def __len__(self) -> int:
        return len(self._places)
