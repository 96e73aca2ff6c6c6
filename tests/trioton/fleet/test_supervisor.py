"""The supervisor over replicas that only pretend, in virtual time: how many there are, updates, canaries, restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import trio

from trioton.fleet.haproxy_commands import Role
from trioton.fleet.replicas import Phase, Registry, Replica
from trioton.fleet.rolling import UpdateState
from trioton.fleet.supervisor import Busy, CannotServe, Supervisor
from trioton.fleet.words import ServerWords

OLD, NEW = ServerWords(("models",)), ServerWords(("models",), ("--log-verbose=1",))
START, DRAIN, WATCH, READY = 2.0, 1.0, 5.0, 60.0


@dataclass
class FakeBalancer:
    share: float = 0.0
    roles: dict[int, Role] = field(default_factory=dict)

    async def set_share(self, share: float) -> None:
        self.share = share

    async def change_role(self, slot: int, role: Role) -> None:
        self.roles[slot] = role


@dataclass
class FakeLives:
    """Each replica serves after `START`, and is gone `DRAIN` after it was told to stop. `fails` says why one that is to
    serve fails instead; those of `dies` die when their event is set."""

    registry: Registry
    fails: Callable[[Replica], str] = lambda replica: ""
    dies: dict[str, trio.Event] = field(default_factory=dict)
    fewest: int | None = None

    async def run(self, replica: Replica) -> str:
        try:
            await trio.sleep(START)
            if failure := self.fails(replica):
                return failure
            replica.serving_since = trio.current_time()
            self.registry.advance(replica, Phase.SERVING)
            died = self.dies.setdefault(replica.name, trio.Event())
            async with trio.open_nursery() as nursery:
                for event in (died, replica.stop):
                    nursery.start_soon(self._until, event, nursery.cancel_scope)
            if died.is_set():
                return "it has died"
            self.registry.advance(replica, Phase.DRAINING)
            await trio.sleep(DRAIN)
            return ""
        finally:
            self.registry.remove(replica)
            if self.fewest is not None:
                self.fewest = min(self.fewest, len(self.registry.serving()))

    async def _until(self, event: trio.Event, scope: trio.CancelScope) -> None:
        await event.wait()
        scope.cancel()


@dataclass
class Fleet:
    supervisor: Supervisor
    lives: FakeLives
    balancer: FakeBalancer

    def generations(self) -> list[int]:
        return sorted(each.generation.number for each in self.supervisor.registry.serving())

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(1000):
            while not condition():
                await self.supervisor.registry.changed.wait()

    async def until_updated(self) -> UpdateState:
        update = self.supervisor.update
        assert update is not None
        await self.until(lambda: update.machine.is_over)
        await trio.sleep(DRAIN + START)
        return update.machine.state


@asynccontextmanager
async def fleet(count: int, fails: Callable[[Replica], str] = lambda replica: "") -> AsyncIterator[Fleet]:
    registry, balancer = Registry(20), FakeBalancer()
    supervisor = Supervisor(registry, balancer, OLD, count, ready_seconds=READY, watch_seconds=WATCH)  # type: ignore[arg-type]
    lives = FakeLives(registry, fails)
    supervisor.lives = lives  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        lives.fewest = count
        yield Fleet(supervisor, lives, balancer)
        supervisor.end()
    assert len(registry) == 0


async def test_it_starts_as_many_as_it_should_and_ends_all(autojump_clock: trio.testing.MockClock) -> None:
    async with fleet(3) as made:
        assert made.generations() == [1, 1, 1]


async def test_it_scales(autojump_clock: trio.testing.MockClock) -> None:
    async with fleet(1) as made:
        made.supervisor.scale(4)
        await made.until(lambda: len(made.generations()) == 4)
        made.supervisor.scale(2)
        await made.until(lambda: len(made.supervisor.registry) == 2)
        assert made.generations() == [1, 1]


async def test_a_replica_that_dies_is_replaced(autojump_clock: trio.testing.MockClock) -> None:
    async with fleet(2) as made:
        await trio.sleep(100)
        victim = made.supervisor.registry.serving()[0]
        made.lives.dies[victim.name].set()
        await made.until(lambda: victim not in made.supervisor.registry)
        died_at = trio.current_time()
        await made.until(lambda: len(made.generations()) == 2)
        assert trio.current_time() - died_at == START  # at once, as it has served well
        assert made.supervisor.restarts == 1


async def test_one_that_keeps_dying_is_started_ever_more_rarely(autojump_clock: trio.testing.MockClock) -> None:
    attempts: list[float] = []

    def fails(replica: Replica) -> str:
        if replica.name in ("replica-1", "replica-2"):
            return ""
        attempts.append(trio.current_time())
        return "no memory"

    async with fleet(2, fails) as made:
        made.supervisor.scale(3)
        await trio.sleep(100)
    gaps = [round(after - before - START) for before, after in pairwise(attempts)]
    assert gaps[:6] == [0, 1, 2, 4, 8, 16]
    assert max(gaps) <= 30


async def test_a_fleet_that_cannot_begin_says_why(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(CannotServe, match="replica-.: no such model"), flatten_subgroups=True):
        async with fleet(2, lambda replica: "no such model"):
            pass


async def test_an_update_replaces_all_and_there_are_never_fewer(autojump_clock: trio.testing.MockClock) -> None:
    async with fleet(3) as made:
        made.supervisor.start_update(NEW)
        assert await made.until_updated() is UpdateState.DONE
        assert made.generations() == [2, 2, 2]
        assert made.lives.fewest == 3
        assert made.supervisor.current.words == NEW


async def test_an_update_that_fails_leaves_the_old_ones(autojump_clock: trio.testing.MockClock) -> None:
    def fails(replica: Replica) -> str:
        return "it fails the probe /v2/models/m/ready" if replica.generation.number == 2 else ""

    async with fleet(2, fails) as made:
        update = made.supervisor.start_update(NEW)
        assert await made.until_updated() is UpdateState.RETURNED
        assert update.machine.reason == "replica-3: it fails the probe /v2/models/m/ready"
        assert made.generations() == [1, 1]
        assert made.supervisor.current.words == OLD


async def test_one_that_fails_late_brings_those_back_that_had_gone(autojump_clock: trio.testing.MockClock) -> None:
    second: list[Replica] = []

    def fails(replica: Replica) -> str:
        if replica.generation.number == 1:
            return ""
        second.append(replica)
        return "no memory" if len(second) == 2 else ""

    async with fleet(2, fails) as made:
        made.supervisor.start_update(NEW)
        assert await made.until_updated() is UpdateState.RETURNED
        assert made.generations() == [1, 1]
        assert made.lives.fewest == 2


async def test_nothing_else_is_begun_while_an_update_runs(autojump_clock: trio.testing.MockClock) -> None:
    async with fleet(1) as made:
        made.supervisor.start_update(NEW)
        with pytest.raises(Busy, match="a rolling update is under way"):
            made.supervisor.scale(2)
        with pytest.raises(Busy):
            made.supervisor.start_update(NEW)
        with pytest.raises(Busy):
            await made.supervisor.start_canary(NEW, 1, 0.1)
        await made.until_updated()


async def test_a_canary_gets_its_share_and_goes(autojump_clock: trio.testing.MockClock) -> None:
    async with fleet(2) as made:
        await made.supervisor.start_canary(NEW, 1, 0.25)
        await made.until(lambda: made.generations() == [1, 1, 2])
        assert made.balancer.share == 0.25
        assert [each.role for each in made.supervisor.registry.serving()].count(Role.CANARY) == 1
        with pytest.raises(Busy, match="there is a canary"):
            made.supervisor.start_update(NEW)
        await made.supervisor.end_canary()
        await made.until(lambda: len(made.supervisor.registry) == 2)
        assert (made.generations(), made.balancer.share) == ([1, 1], 0.0)


async def test_a_canary_is_promoted(autojump_clock: trio.testing.MockClock) -> None:
    async with fleet(3) as made:
        await made.supervisor.start_canary(NEW, 2, 0.25)
        await made.until(lambda: made.generations() == [1, 1, 1, 2, 2])
        slots = {each.slot for each in made.supervisor.registry.serving() if each.role is Role.CANARY}
        await made.supervisor.promote_canary()
        assert made.balancer.roles == dict.fromkeys(slots, Role.MEMBER)
        assert await made.until_updated() is UpdateState.DONE
        assert made.generations() == [2, 2, 2]
        assert made.lives.fewest is not None
        assert made.lives.fewest >= 3


async def test_more_than_there_are_slots_wait(autojump_clock: trio.testing.MockClock) -> None:
    registry = Registry(2)
    supervisor = Supervisor(registry, FakeBalancer(), OLD, 2, ready_seconds=READY, watch_seconds=WATCH)  # type: ignore[arg-type]
    supervisor.lives = FakeLives(registry)  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        supervisor.scale(3)
        await trio.sleep(50)
        assert len(registry) == 2
        supervisor.end()
