"""Who gets a request: shares without keys, stickiness with them, and copies for shadows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from actors.model.split_policy import SplitPolicy
from repository.traffic_split import Shadow, Target, TrafficSplitConfig
from tests.actors.random_schedules import schedule_count

SCHEDULES = schedule_count(100)


def policy(*weights: int, percents: Sequence[float] = ()) -> SplitPolicy:
    return SplitPolicy(
        TrafficSplitConfig(
            tuple(Target("m", 1, weight) for weight in weights),
            tuple(Shadow("m", 2, percent) for percent in percents),
        )
    )


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((1,), "0000"), ((1, 1), "0101"), ((3, 1), "0010"), ((2, 1, 1), "0120"), ((0, 1), "1111"), ((1, 0, 1), "0202")],
)
def test_requests_are_spread_evenly(weights: tuple[int, ...], expected: str) -> None:
    split = policy(*weights)
    assert "".join(str(split.choose()) for _ in expected) == expected


def test_every_target_has_its_share_at_any_time() -> None:
    """After any number of requests, to within one for each target."""
    for seed in range(SCHEDULES):
        random_ = random.Random(seed)
        weights = [random_.choice([0, 1, random_.randint(1, 50)]) for _ in range(random_.randint(1, 6))]
        if not any(weights):
            weights[0] = 1
        assert have_their_shares(weights, random_.randint(1, 300)), f"schedule {seed}: weights {weights}"


def have_their_shares(weights: Sequence[int], count: int) -> bool:
    split = policy(*weights)
    shares = [weight / sum(weights) for weight in weights]
    counts = [0] * len(weights)
    for number in range(1, count + 1):
        counts[split.choose()] += 1
        if any(abs(got - number * share) > len(weights) for share, got in zip(shares, counts, strict=True)):
            return False
    return all(got == 0 for weight, got in zip(weights, counts, strict=True) if not weight)


def test_equal_keys_meet_the_same_target_and_all_keys_together_their_shares() -> None:
    """Also in another server, and whatever came between."""
    one, other = policy(9, 1), policy(9, 1)
    one.choose()
    keys = [f"user {number}" for number in range(2000)]
    chosen = [one.choose(key) for key in keys]
    assert chosen == [other.choose(key) for key in keys]
    assert 0.07 < chosen.count(1) / len(keys) < 0.13


def test_few_keys_move_when_the_weights_change() -> None:
    """From 10 % to 20 %: those that were there stay, and about a tenth comes."""
    before, after = policy(9, 1), policy(8, 2)
    moved = Counter((before.choose(str(number)), after.choose(str(number))) for number in range(2000))
    assert moved[1, 0] == 0
    assert 0.07 < moved[0, 1] / 2000 < 0.13


def test_keys_of_any_text() -> None:
    assert policy(1).choose("\ud800") == policy(1).choose("") == 0


def test_shadows_get_every_nth() -> None:
    split = policy(1, percents=[100, 25, 0])
    assert [list(split.choose_shadows()) for _ in range(8)] == [[0], [0], [0], [0, 1], [0], [0], [0], [0, 1]]
