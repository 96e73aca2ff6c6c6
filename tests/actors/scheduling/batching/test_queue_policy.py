"""Priority levels, limits and timeouts of a queue, by tables."""

from __future__ import annotations

import math
import random

import pytest

from actors.mail.messages import QueuedRequest
from actors.scheduling.batching.queue_policy import Deadlines, QueuePolicies
from protocol.messages import InferenceRequest
from repository.model_config import ModelDynamicBatching, ModelQueuePolicy, TimeoutAction
from tests.actors.fakes import Caller


def request(*, priority: int = 0, timeout_us: int = 0) -> InferenceRequest:
    return InferenceRequest("m", [], priority=priority, timeout_microseconds=timeout_us)


def policies(levels: int = 0, default: ModelQueuePolicy | None = None, **own: ModelQueuePolicy) -> QueuePolicies:
    return QueuePolicies(
        ModelDynamicBatching(
            priority_levels=levels,
            default_priority_level=2 if levels else 0,
            default_queue_policy=default,
            priority_queue_policy={int(level.removeprefix("level_")): policy for level, policy in own.items()},
        )
    )


@pytest.mark.parametrize(
    ("levels", "priority", "level"),
    [(0, 0, 1), (0, 7, 1), (3, 1, 1), (3, 3, 3), (3, 0, 2), (3, 4, 2), (3, 1 << 63, 2)],
)
def test_the_level_of_a_request(levels: int, priority: int, level: int) -> None:
    assert policies(levels).level_of(request(priority=priority)) == level


@pytest.mark.parametrize(
    ("default_us", "can_override", "asked_us", "seconds"),
    [
        (0, False, 0, math.inf),
        (0, True, 500, math.inf),  # without a default there is no timeout
        (1000, False, 0, 0.001),
        (1000, False, 500, 0.001),
        (1000, True, 500, 0.0005),
        (1000, True, 2000, 0.001),  # only a smaller one counts
        (1000, True, 0, 0.001),
    ],
)
def test_how_long_a_request_may_wait(default_us: int, can_override: bool, asked_us: int, seconds: float) -> None:
    policy = ModelQueuePolicy(default_timeout_microseconds=default_us, allow_timeout_override=can_override)
    assert policies(default=policy).timeout(request(timeout_us=asked_us), 1) == pytest.approx(seconds)


def test_a_level_has_its_own_policy_or_the_default() -> None:
    found = policies(
        3,
        ModelQueuePolicy(max_queue_size=5),
        level_2=ModelQueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_microseconds=10),
    )
    assert [found.max_queue_size(level) for level in (1, 2, 3)] == [5, 0, 5]
    assert [found.is_delayed(level) for level in (1, 2, 3)] == [False, True, False]
    assert (found.has_timeouts, found.has_limits) == (True, True)
    assert (policies(2).has_timeouts, policies(2).has_limits) == (False, False)


def test_policies_of_levels_count_only_where_there_are_levels() -> None:
    found = policies(0, None, level_1=ModelQueuePolicy(max_queue_size=5, default_timeout_microseconds=1))
    assert (found.max_queue_size(1), found.has_timeouts, found.has_limits) == (0, False, False)


def test_deadlines_come_due_in_order_whatever_is_taken_out() -> None:
    """At random, against a plain dictionary; what is gone leaves nothing behind."""
    rng = random.Random(3)
    deadlines, model, now = Deadlines(), dict[QueuedRequest, float](), 0.0
    for _ in range(2000):
        match rng.randrange(4):
            case 0 | 1:
                item = Caller().item
                model[item] = now + rng.random() * 10
                deadlines.set(item, model[item])
            case 2 if model:
                gone = rng.choice(list(model))
                del model[gone]
                deadlines.discard(gone)
                deadlines.discard(gone)
            case 3:
                now += rng.random()
                due = sorted((at, id(item)) for item, at in model.items() if at <= now)
                assert [(model[item], id(item)) for item in deadlines.take_due(now)] == due
                model = {item: at for item, at in model.items() if at > now}
        assert deadlines.next_at() == min(model.values(), default=math.inf)
        assert len(deadlines._heap) <= 2 * len(model) + 65
    deadlines.clear()
    assert deadlines.next_at() == math.inf
