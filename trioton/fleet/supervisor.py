"""The supervisor: keeps as many replicas of each kind as there should be.

    flags, scaling, updates, canary → wanted numbers → [supervisor] → a task for each replica (`life`)

Its loop sleeps until the registry changes or the state machine of an update wants to be asked again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import trio

from trioton.fleet.balancer import Balancer
from trioton.fleet.haproxy_commands import Role
from trioton.fleet.life import Lives
from trioton.fleet.replicas import Generation, NoSlot, Phase, Registry, Replica
from trioton.fleet.rolling import Observed, RollingUpdate, UpdateState
from trioton.fleet.words import ServerWords

logger = logging.getLogger("trioton.fleet")

# Of restarts: doubled with each replica that dies without having served for that long.
_FIRST_PAUSE, _LONGEST_PAUSE, _SERVED_WELL = 1.0, 30.0, 10.0


class CannotServe(Exception):
    """No replica has come up at the start."""


class Busy(Exception):
    """What is asked for cannot be begun now; the text says why."""


@dataclass(slots=True)
class Canary:
    """Replicas that get a share of the requests."""

    generation: Generation
    replicas: int
    share: float


@dataclass(slots=True)
class Update:
    """A rolling update from one generation to another."""

    old: Generation
    new: Generation
    machine: RollingUpdate
    failure: str = ""


@dataclass(slots=True)
class Pauses:
    """When a replica of a generation may be started again."""

    not_before: float = -math.inf
    pause: float = 0.0

    def note_failure(self, now: float, *, served: float) -> None:
        if served >= _SERVED_WELL:
            self.pause = 0.0  # at once, the first time
        self.not_before = now + self.pause
        self.pause = min(max(self.pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)


class Supervisor:
    """Of one fleet. `lives` may only be used once it is set, before `run`.

    Attributes:
        count: how many replicas there are to be, besides a canary.
        current: how they are started.
        update: the last rolling update.
        restarts: replicas that have ended without having been told to.
    """

    def __init__(
        self,
        registry: Registry,
        balancer: Balancer,
        words: ServerWords,
        count: int,
        *,
        ready_seconds: float,
        watch_seconds: float,
    ) -> None:
        self.registry = registry
        self.count = count
        self.current = Generation(1, words)
        self.canary: Canary | None = None
        self.update: Update | None = None
        self.restarts = 0
        self.lives: Lives
        self._balancer = balancer
        self._ready_seconds = ready_seconds
        self._watch_seconds = watch_seconds
        self._generations = 1
        self._pauses: dict[Generation, Pauses] = {}
        self._has_served = False
        self._is_ending = False
        self._start_failure = ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `end`, and every replica has ended. Started when as many serve as there should be. Cancelled: all
        replicas are killed.

        Raises:
            CannotServe: one has failed before any has served.
        """
        is_started = False
        async with trio.open_nursery() as nursery:
            while not (self._is_ending and not len(self.registry)):
                changed = self.registry.changed
                wake_at = self._go_on(nursery)
                if self._start_failure:
                    nursery.cancel_scope.cancel()
                    break
                if not is_started and len(self.registry.serving()) >= self.count:
                    is_started = True
                    task_status.started()
                with trio.move_on_at(wake_at):
                    await changed.wait()
        if self._start_failure:
            raise CannotServe(self._start_failure)

    @property
    def is_ending(self) -> bool:
        return self._is_ending

    def end(self) -> None:
        """Drain and end all replicas."""
        self._is_ending = True
        self.registry.note_change()

    def scale(self, count: int) -> None:
        """Raises Busy: an update is under way."""
        self._check_quiet()
        self.count = count
        self.registry.note_change()

    def start_update(self, words: ServerWords) -> Update:
        """Raises Busy."""
        self._check_quiet()
        if self.canary is not None:
            raise Busy("there is a canary: promote it, or end it first")
        return self._begin_update(self._new_generation(words), already_new=0)

    async def start_canary(self, words: ServerWords, replicas: int, share: float) -> Canary:
        """Raises Busy."""
        self._check_quiet()
        if self.canary is not None:
            raise Busy("there is a canary already: promote it, or end it first")
        self.canary = Canary(self._new_generation(words), replicas, share)
        await self._balancer.set_share(share)
        self.registry.note_change()
        return self.canary

    async def set_share(self, share: float) -> Canary:
        """Raises Busy: there is no canary."""
        canary = self._the_canary()
        canary.share = share
        await self._balancer.set_share(share)
        return canary

    async def end_canary(self) -> None:
        """Raises Busy: there is none."""
        self._the_canary()
        self.canary = None
        await self._balancer.set_share(0.0)
        self.registry.note_change()

    async def promote_canary(self) -> Update:
        """Update all others to what the canary is. Raises Busy."""
        self._check_quiet()
        canary = self._the_canary()
        self.canary = None
        update = self._begin_update(canary.generation, already_new=canary.replicas)
        await self._balancer.set_share(0.0)
        for replica in self.registry.wanted(canary.generation):
            replica.role = Role.MEMBER
            if replica.phase is Phase.SERVING:
                await self._balancer.change_role(replica.slot, Role.MEMBER)
        return update

    def is_watched(self, replica: Replica) -> bool:
        """Whether it belongs to an update that is under way."""
        update = self.update
        return update is not None and not update.machine.is_over and replica.generation == update.new

    def _the_canary(self) -> Canary:
        if self.canary is None:
            raise Busy("there is no canary")
        return self.canary

    def _check_quiet(self) -> None:
        if self._is_ending:
            raise Busy("the fleet ends")
        if self.update is not None and not self.update.machine.is_over:
            raise Busy(f"a rolling update is under way ({self.update.machine.state}); wait for its end")

    def _new_generation(self, words: ServerWords) -> Generation:
        self._generations += 1
        return Generation(self._generations, words)

    def _begin_update(self, new: Generation, *, already_new: int) -> Update:
        machine = RollingUpdate(
            self.count,
            trio.current_time(),
            ready_seconds=self._ready_seconds,
            watch_seconds=self._watch_seconds,
            already_new=already_new,
        )
        self.update = Update(self.current, new, machine)
        logger.info(
            "rolling update of %d replicas from generation %d to %d", self.count, self.current.number, new.number
        )
        self.registry.note_change()
        return self.update

    def _go_on(self, nursery: trio.Nursery) -> float:
        """Start and stop what has to be; returns when to look again."""
        now = trio.current_time()
        wake_at = math.inf
        wanted = {} if self._is_ending else dict(self._targets(now))
        if self.update is not None and not self.update.machine.is_over:
            wake_at = self.update.machine.wake_at()
        for generation in {each.generation for each in self.registry} - wanted.keys():
            wanted[generation] = (0, Role.MEMBER)
        for generation, (count, role) in wanted.items():
            have = self.registry.wanted(generation)
            for replica in have[count:]:
                replica.stop.set()
                self.registry.note_change()
            for _ in range(count - len(have)):
                not_before = self._pauses.setdefault(generation, Pauses()).not_before
                if now < not_before:
                    wake_at = min(wake_at, not_before)
                elif not self._start(generation, role, nursery, now):
                    break  # goes on when one has ended
        return wake_at

    def _targets(self, now: float) -> Mapping[Generation, tuple[int, Role]]:
        update = self.update
        if update is not None and not update.machine.is_over:
            wanted = update.machine.step(self._observed(update), now)
            if not update.machine.is_over:
                return {update.old: (wanted.old, Role.MEMBER), update.new: (wanted.new, Role.MEMBER)}
            self._finish(update)
        targets = {self.current: (self.count, Role.MEMBER)}
        if self.canary is not None:
            targets[self.canary.generation] = (self.canary.replicas, Role.CANARY)
        return targets

    def _observed(self, update: Update) -> Observed:
        serving = [each.generation for each in self.registry.serving() if each.is_wanted]
        left = [each.generation for each in self.registry]
        return Observed(
            old=serving.count(update.old),
            new=serving.count(update.new),
            old_left=left.count(update.old),
            new_left=left.count(update.new),
            failure=update.failure,
        )

    def _finish(self, update: Update) -> None:
        self.registry.note_change()
        if update.machine.state is UpdateState.DONE:
            self.current = update.new
            logger.info("rolling update to generation %d is done", update.new.number)
        else:
            logger.error(
                "rolling update to generation %d was undone: %s; generation %d serves on",
                update.new.number,
                update.machine.reason,
                update.old.number,
            )

    def _start(self, generation: Generation, role: Role, nursery: trio.Nursery, now: float) -> bool:
        try:
            replica = self.registry.add(generation, role, now)
        except NoSlot:
            return False
        nursery.start_soon(self._live, replica)
        return True

    async def _live(self, replica: Replica) -> None:
        failure = await self.lives.run(replica)
        now = trio.current_time()
        served = 0.0 if replica.serving_since is None else now - replica.serving_since
        self._has_served = self._has_served or replica.serving_since is not None
        if not failure:
            logger.info("%s has ended: %s", replica.name, replica.ended)
            return
        self.restarts += 1
        logger.error("%s has failed: %s", replica.name, failure)
        self._pauses.setdefault(replica.generation, Pauses()).note_failure(now, served=served)
        if self.is_watched(replica) and self.update is not None:
            self.update.failure = self.update.failure or f"{replica.name}: {failure}"
        if not self._has_served and not self.registry.serving() and not self._is_ending:
            self._start_failure = f"{replica.name}: {failure}"
        self.registry.note_change()
