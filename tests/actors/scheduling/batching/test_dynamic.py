"""The dynamic batcher's policy: by tables, and against random schedules under a clock of the test's own.

`TRIOTON_RANDOM_SCHEDULES` sets how many schedules are tried.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeAlias

import pytest

from actors.mail.messages import QueuedRequest, ShapeKey
from actors.metrics.statistics import FlushReason
from actors.scheduling.batching.dynamic import DynamicBatchingPolicy
from actors.scheduling.batching.policy import BatchingPolicy
from repository.model_config import ModelDynamicBatching, ModelQueuePolicy, TimeoutAction
from tests.actors.fakes import Caller
from tests.actors.random_schedules import schedule_count

SCHEDULES = schedule_count(400)

FULL, PREFERRED, TIMEOUT, IDLE, SHAPE = FlushReason
Formed: TypeAlias = tuple[list[int], FlushReason]


def dynamic(
    *,
    max_batch_size: int = 8,
    preferred: Sequence[int] = (),
    delay_us: int = 0,
    levels: int = 0,
    default: ModelQueuePolicy | None = None,
    own: dict[int, ModelQueuePolicy] | None = None,
) -> DynamicBatchingPolicy:
    config = ModelDynamicBatching(
        preferred_batch_size=tuple(preferred),
        max_queue_delay_microseconds=delay_us,
        priority_levels=levels,
        default_priority_level=levels,
        default_queue_policy=default,
        priority_queue_policy=own or {},
    )
    return DynamicBatchingPolicy(config, max_batch_size=max_batch_size)


def caller(
    *, arrival: float = 0.0, size: int = 1, key: ShapeKey = None, priority: int = 0, timeout_us: int = 0
) -> QueuedRequest:
    item = Caller(size, arrival=arrival, key=key).item
    item.request.priority = priority
    item.request.timeout_microseconds = timeout_us
    return item


def formed(policy: BatchingPolicy, now: float, *, is_ahead: bool = False) -> list[Formed]:
    """All batches that go now, as the sizes of their requests, and why they go."""
    batches: list[Formed] = []
    while (batch := policy.next_batch(now, is_ahead=is_ahead)) is not None:
        assert batch.reason is not None
        batches.append(([item.batch_size for item in batch.items], batch.reason))
    return batches


# max_batch_size, preferred sizes, delay in µs, request sizes (all arrive at 0), now in seconds → batches, next wake-up
FORMING: dict[str, tuple[int, tuple[int, ...], int, list[int], float, list[Formed], float]] = {
    "without delay all that is there goes": (8, (), 0, [1, 1, 1], 0.0, [([1, 1, 1], IDLE)], math.inf),
    "without delay up to the preferred size, then the rest": (
        *(8, (2,), 0, [1, 1, 1], 0.0),
        [([1, 1], PREFERRED), ([1], IDLE)],
        math.inf,
    ),
    "the last preferred size reached counts": (
        *(8, (2, 4), 0, [1] * 5, 0.0),
        [([1] * 4, PREFERRED), ([1], IDLE)],
        math.inf,
    ),
    "a full batch goes at once, delay or not": (4, (), 1000, [1] * 4, 0.0, [([1] * 4, FULL)], math.inf),
    "a preferred size goes at once in spite of a delay": (8, (2,), 1000, [1, 1, 1], 0.0, [([1, 1], PREFERRED)], 0.001),
    "less waits for the delay": (8, (4,), 1000, [1, 1], 0.0, [], 0.001),
    "and goes when the oldest is old enough": (8, (4,), 1000, [1, 1], 0.001, [([1, 1], TIMEOUT)], math.inf),
    "when it is due it goes whole, past the preferred size": (
        *(8, (2,), 1000, [1, 1, 1], 0.002),
        [([1, 1, 1], PREFERRED)],
        math.inf,
    ),
    "a request too large for the room left closes the batch": (8, (), 1000, [5, 5], 0.0, [([5], FULL)], 0.001),
    "one that passes the largest preferred size waits its turn": (
        *(8, (4,), 1000, [3, 3], 0.0),
        [([3], PREFERRED)],
        0.001,
    ),
    "requests carry batch dimensions of any size": (
        *(8, (), 0, [3, 4, 1, 8, 2], 0.0),
        [([3, 4, 1], FULL), ([8], FULL), ([2], IDLE)],
        math.inf,
    ),
    "a request of the maximum alone": (8, (4,), 1000, [8], 0.0, [([8], FULL)], math.inf),
    "a request past the preferred size alone": (8, (4,), 1000, [6], 0.0, [([6], PREFERRED)], math.inf),
}


@pytest.mark.parametrize("case", FORMING.values(), ids=FORMING.keys())
def test_forming(case: tuple[int, tuple[int, ...], int, list[int], float, list[Formed], float]) -> None:
    max_batch_size, preferred, delay_us, requests, now, expected, wake_at = case
    policy = dynamic(max_batch_size=max_batch_size, preferred=preferred, delay_us=delay_us)
    for size in requests:
        assert policy.add(caller(size=size))
    assert formed(policy, now) == expected
    assert policy.wake_at(is_idle=True) == pytest.approx(wake_at)
    assert policy.wake_at(is_idle=False) == math.inf


@pytest.mark.parametrize(
    ("preferred", "delay_us", "sizes", "now", "expected"),
    [
        ((), 0, [1] * 7, 0.0, []),  # it may still grow until an instance is idle
        ((), 0, [1] * 9, 0.0, [([1] * 8, FULL)]),
        ((4,), 0, [1] * 6, 0.0, [([1] * 4, PREFERRED)]),
        ((), 1000, [1] * 7, 5.0, []),
        ((), 0, [5, 5], 0.0, [([5], FULL)]),
    ],
)
def test_ahead_of_an_idle_instance_only_what_would_not_gain_by_waiting(
    preferred: tuple[int, ...], delay_us: int, sizes: list[int], now: float, expected: list[Formed]
) -> None:
    policy = dynamic(preferred=preferred, delay_us=delay_us)
    for size in sizes:
        policy.add(caller(size=size))
    assert formed(policy, now, is_ahead=True) == expected


def test_shapes_that_do_not_fit_form_batches_of_their_own_the_oldest_first() -> None:
    policy = dynamic()
    a, b = ((2,),), ((3,),)
    for arrival, (key, size) in enumerate([(a, 1), (b, 2), (a, 3), (b, 4)]):
        policy.add(caller(size=size, arrival=arrival, key=key))
    assert formed(policy, 10.0) == [([1, 3], SHAPE), ([2, 4], IDLE)]


def test_a_line_that_waits_holds_up_no_other() -> None:
    policy = dynamic(max_batch_size=2, delay_us=1_000_000)
    for _ in range(3):
        policy.add(caller(arrival=0.0, key=((2,),)))
    assert formed(policy, 0.0) == [([1, 1], FULL)]
    assert policy.wake_at(is_idle=True) == pytest.approx(1.0)
    assert policy.waiting == 1


def test_what_a_request_of_another_shape_has_passed_waits_no_longer() -> None:
    policy = dynamic(delay_us=1_000_000)
    for _ in range(2):
        policy.add(caller(arrival=0.0, key=((2,),)))
    assert formed(policy, 0.1) == []
    policy.add(caller(arrival=0.2, key=((3,),)))
    assert formed(policy, 0.2) == [([1, 1], SHAPE)]
    assert policy.wake_at(is_idle=True) == pytest.approx(1.2), "the latest waits for company of its own"
    policy.add(caller(arrival=0.3, key=((2,),)))
    assert formed(policy, 0.3) == [([1], SHAPE)]
    policy.add(caller(arrival=0.4, key=((2,),)))
    assert formed(policy, 0.5) == []
    assert formed(policy, 1.3) == [([1, 1], TIMEOUT)]


def test_shapes_that_alternate_while_instances_are_busy_share_batches() -> None:
    policy = dynamic(delay_us=1_000_000)
    for number in range(6):
        policy.add(caller(arrival=number / 10, key=((number % 2,),)))
    assert policy.next_batch(0.6, is_ahead=True) is None, "ahead of time nothing goes that may grow"
    assert formed(policy, 0.6) == [([1, 1, 1], SHAPE)]
    assert policy.waiting == 3


def test_a_line_that_was_passed_still_stops_at_a_preferred_size() -> None:
    policy = dynamic(preferred=(2,), delay_us=1_000_000)
    for _ in range(3):
        policy.add(caller(arrival=0.0, key=((2,),)))
    policy.add(caller(arrival=0.1, key=((3,),)))
    assert formed(policy, 0.1) == [([1, 1], PREFERRED), ([1], SHAPE)]


def test_who_has_come_and_gone_has_passed_a_line_too() -> None:
    policy = dynamic(delay_us=1_000_000)
    policy.add(caller(arrival=0.0, key=((2,),)))
    gone = caller(arrival=0.1, key=((3,),))
    policy.add(gone)
    policy.abandon(gone)
    assert formed(policy, 0.2) == [([1], SHAPE)]
    assert policy.wake_at(is_idle=True) == math.inf


@pytest.mark.parametrize(("other_size", "reason"), [(3, SHAPE), (4, TIMEOUT)])
def test_the_shape_is_the_reason_only_if_others_would_have_fitted_in(other_size: int, reason: FlushReason) -> None:
    policy = dynamic(max_batch_size=4, delay_us=1000)
    policy.add(caller(key=((2,),)))
    policy.add(caller(key=((3,),), arrival=0.5, size=other_size))
    batch = policy.next_batch(0.001)
    assert batch is not None
    assert batch.reason is reason


# Queue policies.


def test_higher_levels_go_first_and_one_batch_may_join_levels() -> None:
    policy = dynamic(max_batch_size=2, levels=3)
    low, high, other, middle = (
        caller(priority=priority, arrival=float(number)) for number, priority in enumerate([3, 1, 0, 2])
    )
    for item in (low, high, other, middle):
        policy.add(item)
    batches = [policy.next_batch(4.0), policy.next_batch(4.0)]
    assert [batch.items for batch in batches if batch is not None] == [[high, middle], [low, other]]


def test_the_line_with_the_highest_priority_goes_first() -> None:
    policy = dynamic(levels=2)
    early, late = caller(priority=2, key=((2,),)), caller(priority=1, key=((3,),), arrival=1.0)
    policy.add(early)
    policy.add(late)
    batch = policy.next_batch(2.0)
    assert batch is not None
    assert batch.items == [late]


def test_the_delay_counts_from_the_oldest_request_of_any_level() -> None:
    policy = dynamic(levels=2, delay_us=1_000_000)
    policy.add(caller(priority=2, arrival=0.0))
    policy.add(caller(priority=1, arrival=0.9))
    assert formed(policy, 0.9) == []
    assert policy.wake_at(is_idle=True) == pytest.approx(1.0)
    assert formed(policy, 1.0) == [([1, 1], TIMEOUT)]


def test_a_full_queue_refuses_and_an_abandoned_request_makes_room() -> None:
    policy = dynamic(default=ModelQueuePolicy(max_queue_size=2))
    first, second, third = (caller() for _ in range(3))
    assert policy.add(first)
    assert policy.add(second)
    assert not policy.add(third)
    policy.abandon(first)
    policy.abandon(first)  # twice is once
    assert policy.add(third)
    assert policy.clear() == [second, third]
    assert policy.waiting == 0
    assert policy.next_batch(0.0) is None


def test_each_level_has_its_own_limit() -> None:
    policy = dynamic(levels=2, own={1: ModelQueuePolicy(max_queue_size=1)})
    assert policy.add(caller(priority=1))
    assert not policy.add(caller(priority=1))
    assert [policy.add(caller(priority=2)) for _ in range(5)] == [True] * 5
    assert formed(policy, 0.0) == [([1] * 6, IDLE)]
    assert policy.add(caller(priority=1))


def test_a_request_that_has_waited_too_long_is_given_back_once() -> None:
    """Whether instances are idle or not: the policy wants to be asked at that moment."""
    policy = dynamic(default=ModelQueuePolicy(default_timeout_microseconds=1_000_000, allow_timeout_override=True))
    patient, hasty = caller(), caller(arrival=0.1, timeout_us=500_000)
    policy.add(patient)
    policy.add(hasty)
    assert policy.wake_at(is_idle=False) == pytest.approx(0.6)
    assert policy.take_expired(0.59) == []
    assert policy.take_expired(0.6) == [hasty]
    assert policy.wake_at(is_idle=False) == pytest.approx(1.0)
    assert policy.take_expired(1.0) == [patient]
    assert (policy.waiting, policy.next_batch(1.0), policy.wake_at(is_idle=True)) == (0, None, math.inf)


def test_a_request_that_has_left_does_not_expire() -> None:
    policy = dynamic(default=ModelQueuePolicy(default_timeout_microseconds=1000))
    gone, running = caller(), caller()
    policy.add(gone)
    policy.add(running)
    policy.abandon(gone)
    assert formed(policy, 0.0) == [([1], IDLE)]
    assert policy.wake_at(is_idle=False) == math.inf
    assert policy.take_expired(1.0) == []


def test_a_late_request_that_may_stay_goes_behind_the_others_of_its_level() -> None:
    late_policy = ModelQueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_microseconds=1_000_000)
    policy = dynamic(max_batch_size=1, levels=2, own={1: late_policy})
    late, fresh, low = caller(priority=1), caller(priority=1, arrival=0.9), caller(priority=2)
    for item in (low, late, fresh):
        policy.add(item)
    assert policy.take_expired(1.0) == []
    assert policy.wake_at(is_idle=False) == pytest.approx(1.9)
    assert policy.waiting == 3
    order = [batch.items for batch in iter(lambda: policy.next_batch(1.0), None)]
    assert order == [[fresh], [late], [low]]


# Random schedules.


class Schedule:
    """A policy, and beside it the plain truth about who waits."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.max_batch_size = rng.randint(1, 8)
        self.latest: ShapeKey = None
        self.delay = rng.choice([0, 0, 500, 5000])
        self.levels = rng.choice([0, 0, 1, 3])
        default = self.queue_policy()
        own = {level: self.queue_policy() for level in range(1, self.levels + 1) if rng.random() < 0.5}
        self.of_level = {level: own.get(level, default) for level in range(1, max(self.levels, 1) + 1)}
        self.policy = dynamic(
            max_batch_size=self.max_batch_size,
            preferred=[size for size in rng.sample(range(1, 9), rng.randint(0, 3)) if size <= self.max_batch_size],
            delay_us=self.delay,
            levels=self.levels,
            default=default,
            own=own,
        )
        self.now = 0.0
        self.waiting: list[QueuedRequest] = []  # in order of arrival
        self.late: list[QueuedRequest] = []  # of these, in the order in which they became late
        self.seen: set[QueuedRequest] = set()

    def queue_policy(self) -> ModelQueuePolicy:
        rng = self.rng
        return ModelQueuePolicy(
            timeout_action=rng.choice(list(TimeoutAction)),
            default_timeout_microseconds=rng.choice([0, 0, 2000, 20000]),
            allow_timeout_override=rng.random() < 0.5,
            max_queue_size=rng.choice([0, 0, 3]),
        )

    def level(self, item: QueuedRequest) -> int:
        priority = item.request.priority
        return 1 if not self.levels else priority if 1 <= priority <= self.levels else self.levels

    def expires_at(self, item: QueuedRequest) -> float:
        policy = self.of_level[self.level(item)]
        microseconds = policy.default_timeout_microseconds
        asked = item.request.timeout_microseconds
        if policy.allow_timeout_override and 0 < asked < microseconds:
            microseconds = asked
        return item.arrival + microseconds / 1e6 if microseconds else math.inf

    def leave(self, items: Sequence[QueuedRequest]) -> None:
        for item in items:
            assert item not in self.seen, "it has left before"
            self.seen.add(item)
            self.waiting.remove(item)
            if item in self.late:
                self.late.remove(item)

    def arrive(self) -> None:
        rng = self.rng
        item = caller(
            arrival=self.now,
            size=rng.randint(1, self.max_batch_size),
            key=((rng.randint(1, 2),),),
            priority=rng.randint(0, 4),
            timeout_us=rng.choice([0, 1000, 3000]),
        )
        limit = self.of_level[self.level(item)].max_queue_size
        is_full = bool(limit) and sum(self.level(other) == self.level(item) for other in self.waiting) >= limit
        assert self.policy.add(item) is not is_full
        if not is_full:
            self.waiting.append(item)
            self.latest = item.shape_key

    def abandon(self) -> None:
        if self.waiting:
            item = self.rng.choice(self.waiting)
            self.leave([item])
            self.policy.abandon(item)

    def expire(self) -> None:
        due = [item for item in self.waiting if item not in self.late and self.expires_at(item) <= self.now]
        due.sort(key=self.expires_at)
        is_late = [self.of_level[self.level(item)].timeout_action is TimeoutAction.DELAY for item in due]
        refused = [item for item, stays in zip(due, is_late, strict=True) if not stays]
        assert sorted(map(id, self.policy.take_expired(self.now))) == sorted(map(id, refused))
        self.leave(refused)
        self.late += [item for item, stays in zip(due, is_late, strict=True) if stays]

    def order(self, item: QueuedRequest) -> tuple[int, bool, int]:
        is_late = item in self.late
        return self.level(item), is_late, (self.late if is_late else self.waiting).index(item)

    def ask(self, *, is_ahead: bool) -> None:
        self.expire()
        batch = self.policy.next_batch(self.now, is_ahead=is_ahead)
        if batch is None:
            if not is_ahead:  # nobody is left who is due
                assert all(self.now < item.arrival + self.delay / 1e6 for item in self.waiting)
                assert all(item.shape_key == self.latest for item in self.waiting), "it was passed, and waits"
                assert self.policy.wake_at(is_idle=True) > self.now
            return
        assert sum(item.batch_size for item in batch.items) <= self.max_batch_size
        key = batch.items[0].shape_key
        line = sorted((item for item in self.waiting if item.shape_key == key), key=self.order)
        assert line[: len(batch.items)] == list(batch.items), "out of order within its shape"
        self.leave(batch.items)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            match self.rng.choice(["arrive", "arrive", "abandon", "ask", "ahead", "pass"]):
                case "arrive":
                    self.arrive()
                case "abandon":
                    self.abandon()
                case "ask":
                    self.ask(is_ahead=False)
                case "ahead":
                    self.ask(is_ahead=True)
                case "pass":
                    self.now += self.rng.choice([0.0001, 0.001, 0.01])
            assert self.policy.waiting == len(self.waiting)
        while self.waiting:  # an instance is idle again and again: nobody starves, however the levels are
            self.now += 0.001
            self.ask(is_ahead=False)


def test_random_schedules_lose_nothing_answer_once_and_starve_nobody() -> None:
    """Arrivals, departures, timeouts and instances in any order: every request that stays leaves exactly once, in the
    order of its level and shape, in a batch that fits, and no later than its delay allows once an instance asks."""
    for seed in range(SCHEDULES):
        schedule = Schedule(seed)
        try:
            schedule.run(60)
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}") from error
