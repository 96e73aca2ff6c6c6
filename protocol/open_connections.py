"""Open connections: how many connections and streams the listeners of a server have, for the metrics.

Each listener says how it counts them, for as long as it listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias


class Open(NamedTuple):
    """`streams` are requests under way on connections of HTTP/2, which can have several."""

    connections: int = 0
    streams: int = 0


Count: TypeAlias = Callable[[], Open]


class OpenConnections:
    """Those of one server."""

    def __init__(self) -> None:
        self._listeners: list[tuple[str, Count]] = []

    @contextmanager
    def of(self, protocol: str, count: Count) -> Iterator[None]:
        """Within this block a listener counts; `protocol` is the word of its flags, such as "http"."""
        listener = (protocol, count)
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def counts(self) -> Mapping[str, Open]:
        """By protocol; the ports of one together."""
        found: dict[str, Open] = {}
        for protocol, count in self._listeners:
            before, now = found.get(protocol, Open()), count()
            found[protocol] = Open(before.connections + now.connections, before.streams + now.streams)
        return found
