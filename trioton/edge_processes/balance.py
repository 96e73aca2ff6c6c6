"""Which edge process gets the next connection. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Connections that one edge has been handed and not yet taken: with more it is busy, and others get the next ones.
MOST_UNTAKEN = 64
# Checks without an answer after which it gets no more.
SUSPECT_AFTER = 2


@dataclass(slots=True, eq=False)
class EdgeLoad:
    """What the core knows of one edge process.

    Attributes:
        is_ready: it takes connections.
        untaken: how many it has been handed and has not taken.
        unanswered: checks in a row that it has not answered.
        is_full: it has no descriptor left, for all that is known.
        last: when it was handed one, as a count.
    """

    is_ready: bool = False
    untaken: int = 0
    unanswered: int = 0
    is_full: bool = False
    last: int = 0
    _open: Counter[str] = field(default_factory=Counter)
    _open_count: int = 0

    @property
    def open_count(self) -> int:
        return self._open_count

    @property
    def open(self) -> Mapping[str, int]:
        """By the words of services."""
        return self._open

    @property
    def can_take(self) -> bool:
        return self.is_ready and not self.is_full and self.untaken < MOST_UNTAKEN and self.unanswered < SUSPECT_AFTER

    def note_handed(self, word: str, number: int, *, is_too_many: bool) -> None:
        """The `number`th connection of all; one too many is not open."""
        self.untaken += 1
        self.last = number
        if not is_too_many:
            self._open[word] += 1
            self._open_count += 1

    def note_progress(self, taken: int, ended: Mapping[str, int]) -> None:
        self.untaken = max(0, self.untaken - taken)
        for word, count in ended.items():
            less = min(count, self._open[word])
            self._open[word] -= less
            self._open_count -= less


def order(edges: Iterable[EdgeLoad]) -> list[EdgeLoad]:
    """Those that can take a connection: the one with the fewest first, of several the one that has waited longest."""
    return sorted((edge for edge in edges if edge.can_take), key=lambda edge: (edge.open_count, edge.last))
