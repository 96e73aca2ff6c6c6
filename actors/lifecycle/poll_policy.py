"""Poll policy: which models have changed since they were loaded, and have come to rest.

Consulted by the repository watcher. Plain and synchronous.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S")


class Changes(NamedTuple):
    """What to do after a look. `is_restless`: something changes still, so the next look should come soon."""

    load: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    is_restless: bool = False


class PollPolicy(Generic[S]):
    """Copies take time, and a model may be moved away to be replaced: a change counts when two looks, one after the
    other, have found the same. `taken` is what was found when the models were loaded first."""

    def __init__(self, taken: Mapping[str, S]) -> None:
        self._taken = dict(taken)
        self.found: Mapping[str, S] = dict(taken)
        self._again: set[str] = set()

    def load_again(self, name: str) -> None:
        """A model is to be loaded at the next look, though nothing of it changes."""
        if name in self._taken:
            self._again.add(name)

    def look(self, found: Mapping[str, S], busy: Collection[str] = ()) -> Changes:
        """Take what the latest look has found. Changes of the models that are `busy` stay for a later one."""
        last, self.found = self.found, found
        load: list[str] = []
        unload: list[str] = []
        is_restless = False
        for name in sorted({*found, *self._taken}):
            if name in busy or (found.get(name) == self._taken.get(name) and name not in self._again):
                continue
            if found.get(name) != last.get(name):
                is_restless = True
                continue
            self._again.discard(name)
            if name in found:
                self._taken[name] = found[name]
                load.append(name)
            else:
                del self._taken[name]
                unload.append(name)
        return Changes(tuple(load), tuple(unload), is_restless)
