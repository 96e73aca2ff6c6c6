"""The batching policies: by tables, and against random schedules under a clock of the test's own."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.batching_policy import BatchingPolicy, DirectPolicy, DynamicBatchingPolicy
from repository.model_config import ModelDynamicBatching, ModelQueuePolicy
from tests.actors.fakes import Caller


def dynamic(
    *, max_batch_size: int = 8, preferred: Sequence[int] = (), delay_us: int = 0, max_queue_size: int = 0
) -> DynamicBatchingPolicy:
    config = ModelDynamicBatching(
        preferred_batch_size=tuple(preferred),
        max_queue_delay_microseconds=delay_us,
        default_queue_policy=ModelQueuePolicy(max_queue_size=max_queue_size),
    )
    return DynamicBatchingPolicy(config, max_batch_size=max_batch_size)


def sizes(policy: BatchingPolicy, now: float) -> list[list[int]]:
    """All batches that go now, as the sizes of their requests."""
    batches = []
    while (batch := policy.next_batch(now)) is not None:
        batches.append([item.batch_size for item in batch])
    return batches


# max_batch_size, preferred sizes, delay in µs, request sizes (all arrive at 0), now in seconds → batches, next wake-up
FORMING = {
    "without delay all that is there goes": (8, (), 0, [1, 1, 1], 0.0, [[1, 1, 1]], math.inf),
    "without delay up to the preferred size, then the rest": (8, (2,), 0, [1, 1, 1], 0.0, [[1, 1], [1]], math.inf),
    "the last preferred size reached counts": (8, (2, 4), 0, [1] * 5, 0.0, [[1] * 4, [1]], math.inf),
    "a full batch goes at once, delay or not": (4, (), 1000, [1] * 4, 0.0, [[1] * 4], math.inf),
    "a preferred size goes at once in spite of a delay": (8, (2,), 1000, [1, 1, 1], 0.0, [[1, 1]], 0.001),
    "less waits for the delay": (8, (4,), 1000, [1, 1], 0.0, [], 0.001),
    "and goes when the oldest is old enough": (8, (4,), 1000, [1, 1], 0.001, [[1, 1]], math.inf),
    "when it is due it goes whole, past the preferred size": (8, (2,), 1000, [1, 1, 1], 0.002, [[1, 1, 1]], math.inf),
    "a request too large for the room left closes the batch": (8, (), 1000, [5, 5], 0.0, [[5]], 0.001),
    "one that passes the largest preferred size waits its turn": (8, (4,), 1000, [3, 3], 0.0, [[3]], 0.001),
    "requests carry batch dimensions of any size": (8, (), 0, [3, 4, 1, 8, 2], 0.0, [[3, 4, 1], [8], [2]], math.inf),
    "a request of the maximum alone": (8, (4,), 1000, [8], 0.0, [[8]], math.inf),
}


@pytest.mark.parametrize("case", FORMING.values(), ids=FORMING.keys())
def test_forming(case: tuple[int, tuple[int, ...], int, list[int], float, list[list[int]], float]) -> None:
    max_batch_size, preferred, delay_us, requests, now, expected, wake_at = case
    policy = dynamic(max_batch_size=max_batch_size, preferred=preferred, delay_us=delay_us)
    for size in requests:
        assert policy.add(Caller(size).item)
    assert sizes(policy, now) == expected
    assert policy.wake_at() == pytest.approx(wake_at)


def test_shapes_that_do_not_fit_form_batches_of_their_own_the_oldest_first() -> None:
    policy = dynamic()
    a, b = ((2,),), ((3,),)
    for arrival, (key, size) in enumerate([(a, 1), (b, 2), (a, 3), (b, 4)]):
        policy.add(Caller(size, arrival=arrival, key=key).item)
    assert sizes(policy, 10.0) == [[1, 3], [2, 4]]


def test_a_line_that_waits_holds_up_no_other() -> None:
    policy = dynamic(max_batch_size=2, delay_us=1_000_000)
    policy.add(Caller(arrival=0.0, key=((2,),)).item)
    for _ in range(2):
        policy.add(Caller(arrival=0.5, key=((3,),)).item)
    assert sizes(policy, 0.5) == [[1, 1]]
    assert policy.wake_at() == pytest.approx(1.0)
    assert len(policy) == 1


def test_a_full_queue_refuses_and_an_abandoned_request_makes_room() -> None:
    policy = dynamic(max_queue_size=2)
    first, second, third = Caller(), Caller(), Caller()
    assert policy.add(first.item)
    assert policy.add(second.item)
    assert not policy.add(third.item)
    policy.abandon(first.item)
    policy.abandon(first.item)  # twice is once
    assert policy.add(third.item)
    assert policy.clear() == [second.item, third.item]
    assert len(policy) == 0
    assert policy.next_batch(0.0) is None


def test_the_direct_policy_runs_one_by_one_in_order() -> None:
    policy = DirectPolicy()
    callers = [Caller(size) for size in (3, 1, 2)]
    for caller in callers:
        policy.add(caller.item)
    policy.abandon(callers[1].item)
    assert len(policy) == 2
    assert sizes(policy, 0.0) == [[3], [2]]
    assert policy.wake_at() == math.inf
    policy.add(callers[1].item)
    assert policy.clear() == [callers[1].item]


@given(
    seed=st.integers(0, 2**32),
    max_batch_size=st.integers(1, 8),
    preferred=st.lists(st.integers(1, 8), max_size=3),
    delay_us=st.sampled_from([0, 0, 500, 5000]),
    max_queue_size=st.sampled_from([0, 0, 3]),
)
def test_random_schedules_lose_nothing_and_starve_nobody(
    seed: int, max_batch_size: int, preferred: list[int], delay_us: int, max_queue_size: int
) -> None:
    """Arrivals, departures and idle instances in any order: every request that stays leaves exactly once, in order
    within its shape, in a batch that fits, and no later than its delay allows once an instance asks."""
    rng = random.Random(seed)
    policy = dynamic(
        max_batch_size=max_batch_size,
        preferred=[size for size in preferred if size <= max_batch_size],
        delay_us=delay_us,
        max_queue_size=max_queue_size,
    )
    now = 0.0
    waiting: list[Caller] = []
    for _ in range(60):
        match rng.choice(["arrive", "arrive", "leave", "ask", "pass"]):
            case "arrive":
                caller = Caller(rng.randint(1, max_batch_size), arrival=now, key=((rng.randint(1, 2),),))
                is_full = bool(max_queue_size) and len(waiting) >= max_queue_size
                assert policy.add(caller.item) is not is_full
                if not is_full:
                    waiting.append(caller)
            case "leave" if waiting:
                gone = waiting.pop(rng.randrange(len(waiting)))
                policy.abandon(gone.item)
            case "ask":
                batch = policy.next_batch(now)
                if batch is None:
                    assert all(now < caller.item.arrival + delay_us / 1e6 for caller in waiting)
                    assert policy.wake_at() > now
                else:
                    assert sum(item.batch_size for item in batch) <= max_batch_size
                    assert len({item.shape_key for item in batch}) == 1
                    line = [c.item for c in waiting if c.item.shape_key == batch[0].shape_key]
                    assert line[: len(batch)] == list(batch)
                    waiting = [c for c in waiting if c.item not in batch]
            case "pass":
                now += rng.choice([0.0001, 0.001, 0.01])
        assert len(policy) == len(waiting)
    left = [item for batch in iter(lambda: policy.next_batch(now + 1), None) for item in batch]
    assert sorted(map(id, left)) == sorted(id(c.item) for c in waiting)
