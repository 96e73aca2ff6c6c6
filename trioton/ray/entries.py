"""Which servers there are, by what their replicas report. Pure; times are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

MOST_ENTRIES = 10_000
# How often replicas report, and after how long without a report they are taken for gone.
REPORT_SECONDS, MOST_AGE_SECONDS = 1.0, 6.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A server as its replica reports it.

    Attributes:
        replica: a name that no other has, also after a restart.
        host, http_port, grpc_port, metrics_port: where it listens.
        node: the id of Ray's node that it runs on.
        application: of Ray Serve; empty for a replica of a fleet.
        is_leaving: it drains, and takes requests only until balancers have noticed.
    """

    replica: str
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    node: str = ""
    application: str = ""
    is_leaving: bool = False


class Entries:
    """Entries are renewed by their replicas, and dropped when they have not been for `most_age` seconds: then the node
    is gone, or the replica hangs."""

    def __init__(self, most_age: float) -> None:
        self._most_age = most_age
        self._entries: dict[str, tuple[Entry, float]] = {}

    def report(self, entry: Entry, now: float) -> None:
        """It serves, at least since now.

        Raises:
            ValueError: there are too many entries.
        """
        self._drop_old(now)
        if entry.replica not in self._entries and len(self._entries) >= MOST_ENTRIES:
            raise ValueError(f"the directory holds {MOST_ENTRIES} entries already")
        self._entries[entry.replica] = (entry, now)

    def leave(self, replica: str, now: float) -> None:
        """It begins to drain."""
        if found := self._entries.get(replica):
            self._entries[replica] = (replace(found[0], is_leaving=True), now)

    def remove(self, replica: str) -> None:
        self._entries.pop(replica, None)

    def serving(self, now: float, application: str | None = None) -> list[Entry]:
        """Those that requests may go to, of one application or of all, oldest first."""
        self._drop_old(now)
        entries = (entry for entry, _ in self._entries.values())
        return [each for each in entries if not each.is_leaving and application in (None, each.application)]

    def _drop_old(self, now: float) -> None:
        for replica in [name for name, (_, at) in self._entries.items() if now - at > self._most_age]:
            del self._entries[replica]


def as_json(entry: Entry) -> Mapping[str, Any]:
    """For people and programs that are not in Ray's cluster."""
    return {
        "replica": entry.replica,
        "application": entry.application,
        "node": entry.node,
        "http": f"{entry.host}:{entry.http_port}",
        "grpc": f"{entry.host}:{entry.grpc_port}",
        "metrics": f"{entry.host}:{entry.metrics_port}",
    }
