"""The directory of servers: an actor that replicas report to, and clients and balancers ask.

    replicas → report, leave → [directory] → serving → clients, balancers

It holds nothing that its replicas do not report again every `REPORT_SECONDS`, so it may be lost and restarted.
"""

from __future__ import annotations

import time
from typing import Any

import ray

from trioton.ray.entries import MOST_AGE_SECONDS, Entries, Entry

NAMESPACE = "trioton"
DEFAULT_NAME = "trioton"
_CALL_SECONDS = 10.0


class Directory:
    """The actor's class: `Entries` by this process's clock."""

    def __init__(self) -> None:
        self._entries = Entries(MOST_AGE_SECONDS)

    def report(self, entry: Entry) -> None:
        self._entries.report(entry, time.monotonic())

    def leave(self, replica: str) -> None:
        self._entries.leave(replica, time.monotonic())

    def remove(self, replica: str) -> None:
        self._entries.remove(replica)

    def serving(self, application: str | None) -> list[Entry]:
        return self._entries.serving(time.monotonic(), application)


def open_directory(name: str = DEFAULT_NAME) -> Any:
    """The handle of the directory, which is made where it is not there yet. It outlives whoever has made it."""
    options = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "scheduling_strategy": "DEFAULT",  # else it ends with the placement group of the replica that has made it
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
    }
    return ray.remote(Directory).options(**options).remote()


def serving(application: str | None = None, name: str = DEFAULT_NAME) -> list[Entry]:
    """The servers that requests may go to, of one application of Serve or of all; oldest first. Ray must have been
    initialized.

    Raises:
        TimeoutError: the directory does not answer.
    """
    found: list[Entry] = ray.get(open_directory(name).serving.remote(application), timeout=_CALL_SECONDS)
    return found
