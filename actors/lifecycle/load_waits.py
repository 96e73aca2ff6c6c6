"""Wait graph of loads: which models, while they load, wait for loads and unloads of others that their code has asked
for.

Consulted by model calls and by the model manager, which refuse a wait that would close a cycle (deadlock). Plain state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from protocol.errors import InvalidArgument


class LoadWaits:
    """One server's."""

    def __init__(self) -> None:
        self._waits: dict[str, list[str]] = {}

    def of(self, name: str) -> Sequence[str]:
        """The loads that the load of this model waits for."""
        return self._waits.get(name, ())

    @contextmanager
    def waiting(self, loading: str, name: str) -> Iterator[None]:
        """Within this block, the model `loading`, which is being loaded, waits for the model `name`.

        Raises:
            InvalidArgument: that one waits for this one.
        """
        chain = self._chain(name, loading)
        if chain:
            raise InvalidArgument(f"the load of model '{loading}' would wait for itself: {' → '.join(chain)}")
        waits = self._waits.setdefault(loading, [])
        waits.append(name)
        try:
            yield
        finally:
            waits.remove(name)
            if not waits:
                del self._waits[loading]

    def _chain(self, name: str, loading: str) -> list[str]:
        """The chain of loads from `loading` by `name` back to `loading`; empty if there is none."""
        ways = [[loading, name]]
        seen: set[str] = set()
        while ways:
            way = ways.pop()
            if way[-1] == loading:
                return way
            if way[-1] not in seen:
                seen.add(way[-1])
                ways += [[*way, following] for following in self.of(way[-1])]
        return []
