"""The memory budget as a policy: which models hold memory, who uses them, and which go when there is no room.

Consulted by the residence, which loads and unloads. Plain and synchronous; sizes are in bytes, times in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Victims(NamedTuple):
    """The models to unload. Where that does not make room enough (`fits` false), they are those that could go."""

    names: tuple[str, ...]
    fits: bool


@dataclass(eq=False, slots=True)
class MemoryBudget:
    """A model holds memory while it is *resident*; while it is *reserved*, that is about to be loaded; and while it is
    *leaving*, that is being unloaded. Only a resident one that nobody uses is ever chosen to leave.

    `limit` may be exceeded only by what callers reserve without asking. Sizes are known from the last load.
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
        """What is held, and what will be soon."""
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
        """Those that are not resident."""
        return [name for name in names if name not in self._used_at]

    def use(self, names: Iterable[str]) -> None:
        """Somebody uses these from now on, resident or soon to be: they do not leave."""
        self._users.update(names)

    def give_back(self, names: Iterable[str], now: float) -> None:
        """The same as in one `use`."""
        for name in names:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name]
            if name in self._used_at:
                self._used_at[name] = now

    def reserve(self, sizes: Mapping[str, int]) -> None:
        """These are about to be loaded, for `add` or `release` to end."""
        self._reserved.update(sizes)

    def release(self, name: str) -> None:
        """It was not loaded after all, or is resident already."""
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

    def remove(self, name: str) -> None:
        """It is resident no more, by whomever it was unloaded."""
        self._used_at.pop(name, None)

    def victims(self, needed: int, keep: Collection[str], is_idle: Callable[[str], bool]) -> Victims:
        """Who has to go for so many bytes more: those that were not used for longest, and none without need.

        They are neither used, nor in `keep`, nor busy in any other way (`is_idle`). Whoever asks for more than the
        whole budget fits where he is left alone.
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
        """Who has to go for so many bytes more once nobody uses them: used or not, again by age."""
        missing = self.used - sum(self._leaving.values()) + needed - self.limit
        chosen: set[str] = set()
        for name in self._by_age(keep):
            if missing <= 0:
                break
            chosen.add(name)
            missing -= self.sizes[name]
        return frozenset(chosen)

    def youngest(self) -> Collection[str]:
        """The one that was used last, if there is one."""
        return self._by_age(())[-1:]

    def _by_age(self, keep: Collection[str]) -> list[str]:
        """The resident models that hold memory, the one that was not used for longest first."""
        return sorted(
            (name for name in self._used_at if self.sizes[name] and name not in keep),
            key=lambda name: (self._used_at[name], name),
        )
