"""Limit counter: how often each limit of the edges has refused something, for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class LimitCounter:
    """One server's counts. `protocol` is "http" or "grpc"; `limit` is the flag's name without its protocol, for
    example `max_body_size` or `connections`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, protocol: str, limit: str) -> None:
        self._counts[protocol, limit] += 1

    def add(self, protocol: str, limit: str, count: int) -> None:
        """Count refusals that were counted elsewhere."""
        self._counts[protocol, limit] += count

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Refusals by protocol and limit, those that have happened at least once."""
        return dict(self._counts)
