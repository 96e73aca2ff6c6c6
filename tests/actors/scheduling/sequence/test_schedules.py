"""The sequence batcher's policy against random schedules: clients that start, go on, end, begin anew and vanish, and
instances that come and go, in any order.

`TRIOTON_RANDOM_SCHEDULES` sets how many are tried.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from actors.mail.messages import QueuedRequest
from actors.scheduling.sequence.policy import SequencePolicy
from actors.scheduling.sequence.records import Instance, Slot, Step
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig, StrategyDirect, StrategyOldest
from tests.actors.random_schedules import schedule_count
from tests.actors.scheduling.sequence.sequences import IDLE_MICROSECONDS, Caller, config

SCHEDULES = schedule_count(400)
IDLE_SECONDS = IDLE_MICROSECONDS / 1e6


@dataclass(eq=False)
class Life:
    """One sequence from its START on, as its client sees it."""

    id: int | str
    added: list[QueuedRequest] = field(default_factory=list)
    finished: list[QueuedRequest] = field(default_factory=list)
    slot: Slot | None = None
    is_broken: bool = False  # a request of it was abandoned, expired or lost: nothing behind that may run


class Simulation:
    """Clients and instances around a policy; keeps the books and compares."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.config = self._config()
        self.policy = SequencePolicy(self.config)
        self.is_direct = self.config.sequence_batching is not None and self.config.sequence_batching.oldest is None
        self.now = 0.0
        self.instances: list[Instance] = []
        self.running: list[tuple[Instance, list[Step | None]]] = []
        self.most_batches = self.random.choice([1, 1, 2, 4])  # of an instance at once
        self.open: dict[int | str, Life] = {}
        self.lives: dict[QueuedRequest, Life] = {}
        # Where every accepted request ends: exactly one of them.
        self.over: dict[QueuedRequest, str] = {}
        self.rounds: dict[QueuedRequest, int] = {}
        for _ in range(self.random.randint(1, 3)):
            self.gain_instance()

    def _config(self) -> ModelConfig:
        choose = self.random.choice
        delay_us = choose([0, 0, 300_000])
        oldest = StrategyOldest(
            max_candidate_sequences=choose([0, 1, 3]),
            preferred_batch_size=choose([(), (2,)]),
            max_queue_delay_microseconds=delay_us,
        )
        direct = StrategyDirect(max_queue_delay_microseconds=delay_us, minimum_slot_utilization=choose([0.0, 0.5, 1.0]))
        is_direct = choose([True, False])
        return config(
            max_batch_size=choose([2, 3]) if not is_direct else choose([0, 1, 2, 3]),
            direct=direct if is_direct else None,
            oldest=None if is_direct else oldest,
            iterative=choose([False, False, False, True]),
        )

    def act(self) -> None:
        actions = [self.send, self.send, self.send, self.begin, self.begin, self.end, self.end, self.pass_time]
        rare = [self.vanish, self.lose_instance, self.gain_instance]
        self.random.choice([*actions * 3, *rare])()
        self.expire()

    # Clients

    def send(self) -> None:
        """A request of one of a few sequences. What the policy must think of it is known from the books."""
        id = self.random.choice([1, 2, 3, 4, 5, 6])
        is_start = self.random.random() < (0.1 if id in self.open else 0.9)
        caller = Caller(
            id,
            start=is_start,
            end=self.random.random() < 0.3,
            arrival=self.now,
            key=self.random.choice([None, None, ((7,),)]),
            timeout_us=self.random.choice([0, 0, 400_000]),
        )
        item = caller.item
        is_iterative = self.policy.is_iterative
        if not is_iterative and not is_start and not self.policy.continues(item.request):
            with pytest.raises(InvalidArgument):
                self.policy.add(item, self.now)
            self.open.pop(id, None)
            return
        self.policy.add(item, self.now)
        if is_start or is_iterative:
            old = self.open.get(id)
            life = self.open[id] = Life(id)
            if old is not None and not is_iterative:
                life.slot = old.slot if self._goes_on(old) else None
        life = self.open[id]
        life.added.append(item)
        self.lives[item] = life
        if item.request.sequence_end or is_iterative:
            del self.open[id]

    def _goes_on(self, old: Life) -> bool:
        """Whether an old life's place is the new one's too: something of it is there still, in its slot."""
        return any(item not in self.over for item in old.added)

    def vanish(self) -> None:
        here = [item for item in self.lives if item not in self.over]
        if not here:
            return
        item = self.random.choice(here)
        item.is_cancelled = True
        rest = self.policy.abandon(item)
        life = self.lives[item]
        assert all(self.lives[each] is life for each in rest)
        assert item not in rest
        if not self._is_running(item):
            self.settle(item, "abandoned")
        for each in rest:
            self.settle(each, "dropped")
        life.is_broken = True
        self._forget(life)

    def _forget(self, life: Life) -> None:
        for id, found in list(self.open.items()):
            if found is life:
                del self.open[id]

    # Instances

    def gain_instance(self) -> None:
        if len(self.instances) < 3:
            name = self.random.choice([name for name in ("i1", "i2", "i3") if name not in self.instances])  # or again
            self.instances.append(name)
            self.policy.add_instance(name)

    def lose_instance(self) -> None:
        if len(self.instances) < 2:
            return
        instance = self.random.choice(self.instances)
        self.instances.remove(instance)
        for item in self.policy.remove_instance(instance):
            self.settle(item, "lost")
            self.lives[item].is_broken = True
            self._forget(self.lives[item])
        for place in reversed([place for place, (each, _) in enumerate(self.running) if each == instance]):
            self._finish(place)

    def begin(self) -> None:
        for instance in self.idle():
            found = self.policy.next_batch(instance, self.now)
            if found is not None:
                self.check(instance, list(found[0]))
                self.running.append((instance, list(found[0])))

    def check(self, instance: Instance, rows: list[Step | None]) -> None:
        steps = [step for step in rows if step is not None]
        assert steps
        assert rows[-1] is not None
        assert len(rows) <= max(self.config.max_batch_size, 1)
        assert len({step.item.shape_key for step in steps}) == 1
        assert self.is_direct or len(steps) == len(rows)
        lives = [self.lives[step.item] for step in steps]
        assert len(set(map(id, lives))) == len(lives)
        for row, step in enumerate(rows):
            if step is not None:
                self.check_step(instance, row, step)

    def check_step(self, instance: Instance, row: int, step: Step) -> None:
        item = step.item
        life = self.lives[item]
        assert item not in self.over
        assert not self._is_running(item)
        assert not any(self._is_running(other) for other in life.added), "one step of a sequence at a time"
        if not self.policy.is_iterative:
            older = itertools.takewhile(lambda other: other is not item, self.lives)
            before = [other for other in older if self.lives[other].id == life.id]
            assert all(other in self.over for other in before), "sequences of one id run one after the other"
        if self.is_direct:
            rows = [rows for each, rows in self.running if each == instance]
            assert all(len(each) <= row or each[row] is None for each in rows), "a row is one sequence's at a time"
        waiting = [other for other in life.added if other not in self.over]
        assert waiting[0] is item, "requests of a sequence run in order"
        assert step.is_start is (item is life.added[0] and not self.rounds.get(item, 0))
        index = row if self.is_direct else 0
        if life.slot is None:
            life.slot = Slot(instance, index)
        assert (life.slot.instance, life.slot.index) == (instance, index), "a sequence stays where it is"

    def end(self) -> None:
        if self.running:
            self._finish(self.random.randrange(len(self.running)))

    def _finish(self, place: int) -> None:
        for step in self.running.pop(place)[1]:
            if step is None:
                continue
            item = step.item
            wants_more = self.policy.is_iterative and self.rounds.get(item, 0) < 3 and self.random.random() < 0.5
            if self.policy.finish(step, self.now, is_rescheduled=wants_more):
                assert wants_more
                assert not item.is_cancelled
                self.rounds[item] = self.rounds.get(item, 0) + 1
                continue
            self.settle(item, "abandoned" if item.is_cancelled else "finished")
            self.lives[item].finished.append(item)

    def idle(self) -> list[Instance]:
        """Those that can take a batch."""
        taken = Counter(instance for instance, _ in self.running)
        return [instance for instance in self.instances if taken[instance] < self.most_batches]

    def _is_running(self, item: QueuedRequest) -> bool:
        return any(step is not None and step.item is item for _, rows in self.running for step in rows)

    # Time

    def pass_time(self) -> None:
        self.now += self.random.choice([0.01, 0.1, 0.3, 1.0])

    def expire(self) -> None:
        for item in self.policy.take_expired(self.now):
            self.settle(item, "expired")
            self.lives[item].is_broken = True
            self._forget(self.lives[item])

    def settle(self, item: QueuedRequest, how: str) -> None:
        assert item not in self.over, f"{self.over[item]} and {how}"
        self.over[item] = how

    def run_to_the_end(self) -> None:
        """Nobody sends any more. Time passes only to where the policy says, so a timer that is missing shows."""
        for _ in range(10_000):
            self.begin()
            if self.running:
                self.end()
            elif not self.policy.waiting:
                return
            else:
                wake_at = self.policy.wake_at(self.idle())
                assert wake_at < math.inf, "somebody waits for ever"
                assert wake_at > self.now, "somebody could run"
                assert wake_at <= self.now + IDLE_SECONDS
                self.now = wake_at
            self.expire()
        raise AssertionError("it does not end")

    def audit(self) -> None:
        assert set(self.over) == set(self.lives), "a request is lost"
        for life in self.lives.values():
            ran = [item for item in life.added if self.over[item] == "finished"]
            assert ran == [item for item in life.finished if not item.is_cancelled]
            if not life.is_broken:
                assert ran == life.added


@pytest.mark.parametrize("part", range(4))
def test_random_schedules(part: int) -> None:
    """No request is lost, ended twice, run beside or before another of its sequence, or elsewhere than its sequence; a
    batch is one that may be; and once clients fall silent everything ends without a timer too many."""
    for seed in range(part, SCHEDULES, 4):
        simulation = Simulation(seed)
        try:
            for _ in range(simulation.random.randint(5, 80)):
                simulation.act()
            simulation.run_to_the_end()
            simulation.audit()
        except BaseException as error:
            error.add_note(f"seed {seed}, {simulation.config.sequence_batching}")
            raise
