"""The registry: which replicas there are, in what state, and which slot of the balancer each has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import trio

from trioton.fleet.driver import Address, Running
from trioton.fleet.haproxy_commands import Role
from trioton.fleet.words import ServerWords


class Phase(StrEnum):
    """Of a replica's life, in its order."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Generation:
    """Replicas that are started alike."""

    number: int
    words: ServerWords


@dataclass(slots=True, eq=False)
class Replica:
    """One replica.

    Attributes:
        slot: that of the balancer which it holds from its start to its end.
        running: its process; None until that was started.
        stop: set when it is to drain and end.
        ended: how it has ended; empty until then.
    """

    name: str
    slot: int
    generation: Generation
    role: Role
    started_at: float
    phase: Phase = Phase.STARTING
    running: Running | None = None
    serving_since: float | None = None
    stop: trio.Event = field(default_factory=trio.Event)
    ended: str = ""

    @property
    def address(self) -> Address | None:
        return None if self.running is None else self.running.address

    @property
    def is_wanted(self) -> bool:
        """Whether it serves, or is about to."""
        return self.phase in (Phase.STARTING, Phase.SERVING) and not self.stop.is_set()

    def described(self, now: float) -> dict[str, Any]:
        """For the fleet's status."""
        address = self.address
        return {
            "name": self.name,
            "phase": str(self.phase),
            "role": str(self.role),
            "generation": self.generation.number,
            "seconds": round(now - self.started_at, 1),
            "process": "" if self.running is None else self.running.about,
            "http": "" if address is None else f"{address.host}:{address.http_port}",
            "grpc": "" if address is None else f"{address.host}:{address.grpc_port}",
            "metrics": "" if address is None else f"{address.host}:{address.metrics_port}",
        }


class NoSlot(Exception):
    """Every slot of the balancer is taken; one is free again when a replica has ended."""


class Registry:
    """All replicas of a fleet. `changed` is set at each change, and is itself replaced before."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots, 0, -1))
        self._replicas: dict[str, Replica] = {}
        self._count = 0
        self.changed = trio.Event()

    def __iter__(self) -> Iterator[Replica]:
        """In the order of their starts."""
        return iter([*self._replicas.values()])

    def __len__(self) -> int:
        return len(self._replicas)

    def __contains__(self, replica: object) -> bool:
        return replica in self._replicas.values()

    def add(self, generation: Generation, role: Role, now: float) -> Replica:
        """A new one, which is to be started. Raises NoSlot."""
        if not self._free:
            raise NoSlot
        self._count += 1
        replica = Replica(f"replica-{self._count}", self._free.pop(), generation, role, now)
        self._replicas[replica.name] = replica
        self.note_change()
        return replica

    def remove(self, replica: Replica) -> None:
        """It has ended."""
        replica.phase = Phase.ENDED
        if self._replicas.pop(replica.name, None) is not None:
            self._free.append(replica.slot)
        self.note_change()

    def advance(self, replica: Replica, phase: Phase) -> None:
        replica.phase = phase
        self.note_change()

    def serving(self) -> list[Replica]:
        return [each for each in self if each.phase is Phase.SERVING]

    def wanted(self, generation: Generation, role: Role | None = None) -> list[Replica]:
        """Those of a generation that are neither ending nor told to."""
        return [
            each
            for each in self
            if each.generation == generation and each.is_wanted and (role is None or each.role is role)
        ]

    def note_change(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()
