"""What waits for an engine, in turns of keys that have weights."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from backends.engines.admission import Admission, AdmissionLimits, Need
from protocol.quotas.accounts import Account, Terms


def account(name: str, weight: float = 1.0) -> Account:
    return Account(Terms(name, weight=weight), lambda: 0.0)


def admission() -> Admission[str]:
    return Admission(AdmissionLimits(requests=1), "m")


def order_of(waiting: Admission[str]) -> list[str]:
    found = []
    while (item := waiting.next()) is not None:
        found.append(item)
        waiting.finish(item)
    return found


def test_keys_without_weights_go_as_they_come() -> None:
    waiting, alice, bob = admission(), account("alice", 0), account("bob", 0)
    for number in range(3):
        waiting.add(f"a{number}", Need(5, 10), alice)
    waiting.add("b0", Need(5, 10), bob)
    waiting.add("c0", Need(5, 10, priority=-1))
    assert order_of(waiting) == ["c0", "a0", "a1", "a2", "b0"]


def test_keys_with_weights_take_turns_within_a_priority() -> None:
    waiting, alice, bob = admission(), account("alice"), account("bob")
    for number in range(3):
        waiting.add(f"a{number}", Need(5, 10), alice)
    for number in range(3):
        waiting.add(f"b{number}", Need(5, 10), bob)
    waiting.add("urgent", Need(5, 10, priority=-1), alice)
    assert waiting.withdraw("a1")
    assert not waiting.withdraw("a1")
    assert order_of(waiting) == ["urgent", "b0", "a0", "b1", "a2", "b2"]


def test_turns_begin_with_what_waits_already_and_end_with_the_weights() -> None:
    waiting, alice, bob = admission(), account("alice", 0), account("bob", 0)
    for number in range(3):
        waiting.add(f"a{number}", Need(5, 10), alice)
    alice.weight = bob.weight = 1.0
    waiting.add("b0", Need(5, 10), bob)
    assert order_of(waiting) == ["a0", "b0", "a1", "a2"]
    alice.weight = bob.weight = 0.0
    for number in range(2):
        waiting.add(f"a{number}", Need(5, 10), alice)
    waiting.add("b0", Need(5, 10), bob)
    assert order_of(waiting) == ["a0", "a1", "b0"]


@pytest.mark.parametrize("seed", range(5))
def test_two_keys_that_offer_ten_to_one_get_as_many_tokens(seed: int) -> None:
    """Of prompts once and of answers twice; bob's generations are four times as long."""
    rng = random.Random(seed)
    waiting, alice, bob = admission(), account("alice"), account("bob")
    spent: Counter[str] = Counter()
    number = 0
    for _ in range(3000):
        for owner, offers in ((alice, 1.0), (bob, 0.4)):
            while rng.random() < offers * 0.7:
                number += 1
                waiting.add(f"{owner.name} {number}", Need(20, 200), owner)
        item = waiting.next()
        if item is not None:
            owner, length = (alice, 25) if item.startswith("alice") else (bob, 100)
            tokens = rng.randrange(2 * length)
            waiting.generated(owner, tokens)
            spent[owner.name] += 20 + 2 * tokens
            waiting.finish(item)
    assert spent["alice"] / spent["bob"] == pytest.approx(1, abs=0.05)
