"""Poll policy: decides from file fingerprints which models have changed since they were loaded, once the changes have
settled.

Consulted by the repository watcher. Plain and synchronous.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S")


class Changes(NamedTuple):
    """What to do after a poll. `is_restless`: something is still changing, so the next poll should come soon."""

    load: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    is_restless: bool = False


class PollPolicy(Generic[S]):
    """Copies take time, and a model may be moved away to be replaced: a change counts once two successive polls have
    found the same. `taken` is what was found when the models were first loaded."""

    def __init__(self, taken: Mapping[str, S]) -> None:
        self._taken = dict(taken)
        self.found: Mapping[str, S] = dict(taken)
        self._again: set[str] = set()

    def load_again(self, name: str) -> None:
        """Load a model at the next poll, though its files have not changed."""
        if name in self._taken:
            self._again.add(name)

    def look(self, found: Mapping[str, S], busy: Collection[str] = ()) -> Changes:
        """Take the result of a poll. Changes of models that are `busy` are left to a later one."""
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
