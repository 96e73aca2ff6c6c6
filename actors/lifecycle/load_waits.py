"""Load waits: which models, while they are loaded themselves, wait for loads and unloads of others that they ask for.

Consulted by the calls of models and by the model manager, so that no two loads wait for each other. Plain state.
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
        """What the load of this model waits for."""
        return self._waits.get(name, ())

    @contextmanager
    def waiting(self, loading: str, name: str) -> Iterator[None]:
        """While the model `loading`, which is being loaded, waits for the model `name`.

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
        """The loads from `loading` by `name` back to `loading`; empty if there is no such way."""
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
