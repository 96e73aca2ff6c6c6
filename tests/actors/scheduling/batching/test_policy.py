"""What is common to batching policies, and the default scheduler's."""

from __future__ import annotations

import math

from actors.scheduling.batching.policy import DirectPolicy
from tests.actors.fakes import Caller


def test_the_direct_policy_runs_one_by_one_in_order() -> None:
    policy = DirectPolicy()
    first, second, third = (Caller(size) for size in (3, 1, 2))
    for caller in (first, second, third):
        assert policy.add(caller.item)
    policy.abandon(second.item)
    policy.abandon(second.item)  # twice is once
    assert policy.waiting == 2
    assert policy.take_expired(1000.0) == ()
    batches = [policy.next_batch(0.0), policy.next_batch(0.0, is_ahead=True), policy.next_batch(0.0)]
    assert [None if batch is None else (list(batch.items), batch.reason) for batch in batches] == [
        ([first.item], None),
        ([third.item], None),
        None,
    ]
    assert policy.wake_at(is_idle=True) == math.inf


def test_what_is_cleared_waits_no_more() -> None:
    policy = DirectPolicy()
    callers = [Caller(), Caller()]
    for caller in callers:
        policy.add(caller.item)
    assert policy.clear() == [caller.item for caller in callers]
    assert (policy.waiting, policy.next_batch(0.0)) == (0, None)
