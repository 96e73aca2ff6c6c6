"""The interface to what runs replicas: processes of this machine, or of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trioton.fleet.words import ServerWords


@dataclass(frozen=True, slots=True)
class Address:
    """Where a replica listens, as the balancer reaches it."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int


class Running(Protocol):
    """A replica that was started.

    Attributes:
        address: where it listens, or will once it has started.
        about: what tells people which process it is.
    """

    address: Address
    about: str

    async def wait(self) -> str:
        """Return when it has ended, with how, in words. May be called by several tasks, and again."""
        ...

    def stop(self) -> None:
        """Have it drain and end, as SIGTERM does."""

    def kill(self) -> None:
        """End it now."""


class CannotStart(Exception):
    """A replica could not even be started; the text says why."""


class Driver(Protocol):
    """Starts replicas. What it has started ends with the supervisor at the latest, also if that is killed."""

    async def start(self, name: str, words: ServerWords) -> Running:
        """Start a server; it need not be ready. Cancelled, it leaves none.

        Raises:
            CannotStart: there is no such command, or no room.
        """
        ...
