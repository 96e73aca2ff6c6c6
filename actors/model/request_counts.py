"""Counts of the requests that clients wait for, by model and version.

Owned by the core, which does not end before all are answered. A request has its count at hand, so that its end takes no
search.
"""

from __future__ import annotations

import msgspec


class RequestCount(msgspec.Struct, eq=False):
    """Those of one version; `name` is the model's as the client gave it."""

    name: str
    version: int
    waiting: int = 0


class RequestCounts:
    """Of versions with none nothing is kept. A request is counted from `begin` on; whoever ends it takes one off its
    count, and calls `remove` where that leaves none."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], RequestCount] = {}

    def begin(self, name: str, version: int) -> RequestCount:
        key = (name, version)
        found = self._counts.get(key)
        if found is None:
            found = self._counts[key] = RequestCount(name, version)
        found.waiting += 1
        return found

    def remove(self, count: RequestCount) -> None:
        del self._counts[count.name, count.version]

    def of_model(self, name: str) -> int:
        """Of all versions that were asked for by this name."""
        return sum(count.waiting for count in self._counts.values() if count.name == name)

    def by_version(self) -> dict[tuple[str, int], int]:
        return {key: count.waiting for key, count in self._counts.items()}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._counts)
