"""Memory budget policy: which models hold memory, which are in use, and which are evicted to make room (least recently
used).

Consulted by the residence, which loads and unloads. Plain and synchronous; sizes are in bytes, times in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Victims(NamedTuple):
    """The models to evict. Where that does not make room enough (`fits` is false), they are those that could be."""

    names: tuple[str, ...]
    fits: bool


@dataclass(eq=False, slots=True)
class MemoryBudget:
    """A model holds memory while it is *resident*; while it is *reserved*, that is about to be loaded; and while it is
    *leaving*, that is being unloaded. Only a resident model that is not in use is ever evicted.

    `limit` is exceeded only where callers reserve without checking. Sizes are known from the last load.
    """

    limit: int
    sizes: dict[str, int] = field(default_factory=dict)
    evictions: Counter[str] = field(default_factory=Counter)
    demand_loads: Counter[str] = field(default_factory=Counter)
    _used_at: dict[str, float] = field(default_factory=dict)  # of the resident ones
    _users: Counter[str] = field(default_factory=Counter)
    _reserved: dict[str, int] = field(default_factory=dict)
    _leaving: dict[str, int] = field(default_factory=dict)

    @property
    def used(self) -> int:
        """What is held, and what is reserved."""
        resident = sum(self.sizes[name] for name in self._used_at)
        return resident + sum(self._reserved.values()) + sum(self._leaving.values())

    @property
    def is_exceeded(self) -> bool:
        return self.used > self.limit

    @property
    def resident(self) -> Collection[str]:
        return self._used_at.keys()

    def is_reserved(self, name: str) -> bool:
        return name in self._reserved

    def is_used(self, name: str) -> bool:
        return self._users[name] > 0

    def missing(self, names: Iterable[str]) -> list[str]:
        """The models among these that are not resident."""
        return [name for name in names if name not in self._used_at]

    def use(self, names: Iterable[str]) -> None:
        """Mark these in use, resident or soon to be: they are not evicted."""
        self._users.update(names)

    def give_back(self, names: Iterable[str], now: float) -> None:
        """Undo one `use` of the same models."""
        for name in names:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name]
            if name in self._used_at:
                self._used_at[name] = now

    def reserve(self, sizes: Mapping[str, int]) -> None:
        """These are about to be loaded; `add` or `release` ends that."""
        self._reserved.update(sizes)

    def release(self, name: str) -> None:
        """End a reservation: it was not loaded after all, or is resident already."""
        self._reserved.pop(name, None)

    def add(self, name: str, size: int, now: float) -> None:
        """It is loaded, and holds this much."""
        self._reserved.pop(name, None)
        self.sizes[name] = size
        self._used_at[name] = now

    def begin_eviction(self, name: str) -> None:
        """It takes no more requests; its memory is held until `end_eviction`."""
        del self._used_at[name]
        self._leaving[name] = self.sizes[name]
        self.evictions[name] += 1

    def end_eviction(self, name: str) -> None:
        """What it held is free."""
        self._leaving.pop(name, None)

    def cancel_eviction(self, name: str, now: float) -> None:
        """It is resident still, if its eviction has not ended."""
        if self._leaving.pop(name, None) is not None:
            self._used_at[name] = now

    def remove(self, name: str) -> None:
        """It is no longer resident, whoever unloaded it."""
        self._used_at.pop(name, None)

    def victims(self, needed: int, keep: Collection[str], is_idle: Callable[[str], bool]) -> Victims:
        """The models to evict for so many bytes more, least recently used first, and none without need.

        They are not in use, nor in `keep`, nor busy otherwise (`is_idle`). A model larger than the whole budget fits
        when it is alone.
        """
        leaving = sum(self._leaving.values())  # they go anyway, and have to be waited for
        missing = self.used - leaving + needed - self.limit
        chosen: list[str] = []
        for name in self._by_age(keep):
            if missing <= 0:
                break
            if not self.is_used(name) and is_idle(name):
                chosen.append(name)
                missing -= self.sizes[name]
        for name in reversed(chosen):  # a large one that came last may have made smaller ones unneeded
            if missing + self.sizes[name] <= 0:
                chosen.remove(name)
                missing += self.sizes[name]
        is_alone = not self._leaving and not self._reserved and not set(self._by_age(keep)).difference(chosen)
        return Victims(tuple(chosen), missing + leaving <= 0 or is_alone)

    def doomed(self, needed: int, keep: Collection[str]) -> frozenset[str]:
        """The models to evict for so many bytes more once they are idle: in use or not, least recently used first."""
        missing = self.used - sum(self._leaving.values()) + needed - self.limit
        chosen: set[str] = set()
        for name in self._by_age(keep):
            if missing <= 0:
                break
            chosen.add(name)
            missing -= self.sizes[name]
        return frozenset(chosen)

    def youngest(self) -> Collection[str]:
        """The most recently used model, if there is any."""
        return self._by_age(())[-1:]

    def _by_age(self, keep: Collection[str]) -> list[str]:
        """The resident models that hold memory, least recently used first."""
        return sorted(
            (name for name in self._used_at if self.sizes[name] and name not in keep),
            key=lambda name: (self._used_at[name], name),
        )
