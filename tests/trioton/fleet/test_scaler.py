"""The autoscaler over a supervisor that only counts, in virtual time."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import trio

from trioton.fleet.flags import FleetFlags, Signal
from trioton.fleet.haproxy_commands import Role
from trioton.fleet.replicas import Generation, Phase, Registry, Replica
from trioton.fleet.scaler import Scaler
from trioton.fleet.signals import Figures
from trioton.fleet.supervisor import Busy
from trioton.fleet.words import ServerWords

FLAGS = FleetFlags(
    replicas=2, scale_by=Signal.QUEUE, scale_target=4.0, scale_up_cooldown_secs=10.0, scale_down_cooldown_secs=60.0
)


@dataclass
class Supervisor:
    """Each change takes effect at once."""

    registry: Registry = field(default_factory=lambda: Registry(20))
    count: int = 0
    changes: list[tuple[float, int]] = field(default_factory=list)
    is_busy: bool = False

    def scale(self, count: int) -> None:
        if self.is_busy:
            raise Busy("a rolling update is under way")
        self.count = count
        self.changes.append((trio.current_time(), count))
        while len(self.registry) < count:
            replica = self.registry.add(Generation(1, ServerWords(())), Role.MEMBER, 0.0)
            self.registry.advance(replica, Phase.SERVING)
        for replica in [*self.registry][count:]:
            self.registry.remove(replica)


@dataclass
class Load:
    """So many requests wait, over all replicas."""

    supervisor: Supervisor
    waiting: float = 0.0

    async def figures(self, replica: Replica) -> Figures | None:
        return Figures(queued=self.waiting / self.supervisor.count)


def made() -> tuple[Supervisor, Load, Scaler]:
    supervisor = Supervisor()
    supervisor.scale(2)
    supervisor.changes.clear()
    load = Load(supervisor)
    return supervisor, load, Scaler(FLAGS, supervisor, load.figures)  # type: ignore[arg-type]


async def test_it_follows_the_load_and_says_why(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    supervisor, load, scaler = made()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scaler.run)
        load.waiting = 20.0
        await trio.sleep(5)
        assert supervisor.changes == [(2.0, 5)]
        load.waiting = 0.0
        await trio.sleep(500)
        nursery.cancel_scope.cancel()
    assert [count for _, count in supervisor.changes] == [5, 4, 3, 2, 1]
    assert all(after - before >= 60 for (before, _), (after, _) in pairwise(supervisor.changes))
    assert "scaling from 2 to 5 replicas (bounds 1 to 8): the number of requests that wait" in caplog.text
    assert scaler.last_reason.startswith("scaling from 2 to 1 replicas")


async def test_it_waits_for_those_that_are_still_to_come(autojump_clock: trio.testing.MockClock) -> None:
    supervisor, load, scaler = made()
    supervisor.count = 3  # one starts
    load.waiting = 100.0
    with trio.move_on_after(60):
        await scaler.run()
    assert supervisor.changes == []
    assert scaler.signal is not None


async def test_while_an_update_runs_nothing_is_changed(autojump_clock: trio.testing.MockClock) -> None:
    supervisor, load, scaler = made()
    supervisor.is_busy, load.waiting = True, 100.0
    with trio.move_on_after(30):
        await scaler.run()
    assert supervisor.changes == []
    supervisor.is_busy = False
    with trio.move_on_after(30):
        await scaler.run()
    assert [count for _, count in supervisor.changes] == [8]


async def test_without_a_signal_it_does_nothing() -> None:
    supervisor = Supervisor()
    scaler = Scaler(FleetFlags(), supervisor, Load(supervisor).figures)  # type: ignore[arg-type]
    await scaler.run()
    scaler.note_change()
    assert scaler.described() is None
