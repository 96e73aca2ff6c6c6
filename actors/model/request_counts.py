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


# So many are kept for versions that have none in flight, or as many as there are of the others.
MOST_KEPT = 64


class RequestCounts:
    """A request is counted from `begin` on; whoever ends it takes one off its count. A count of none is kept for the
    next request, until there are too many."""

    __slots__ = ("_counts", "_most")

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], RequestCount] = {}
        self._most = MOST_KEPT

    def begin(self, name: str, version: int) -> RequestCount:
        key = (name, version)
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= self._most:
                self._counts = {key: count for key, count in self._counts.items() if count.waiting}
                self._most = max(MOST_KEPT, 2 * len(self._counts))  # else each new one would look at all again
            found = self._counts[key] = RequestCount(name, version)
        found.waiting += 1
        return found

    def of_model(self, name: str) -> int:
        """Of all versions that were asked for by this name."""
        return sum(count.waiting for count in self._counts.values() if count.name == name)

    def by_version(self) -> dict[tuple[str, int], int]:
        """Of those that have any."""
        return {key: count.waiting for key, count in self._counts.items() if count.waiting}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return any(count.waiting for count in self._counts.values())
