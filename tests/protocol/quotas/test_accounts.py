"""Accounts and their charges: what is admitted, what is given back, and what a change of the file leaves."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from protocol.errors import QuotaExceeded
from protocol.quotas.accounts import Account, Ledger, Terms
from protocol.quotas.meters import Rate
from protocol.quotas.quota import Quota, Unit
from protocol.quotas.usage import MOST_NAMED, OTHER


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def per_second(limit: float, burst: float | None = None) -> Rate:
    return Rate(limit, 1.0, limit if burst is None else burst)


def make(
    clock: Clock, limits: dict[Unit, Rate | int], models: dict[str, dict[Unit, Rate | int]] | None = None
) -> Account:
    ledger = Ledger(clock)
    ledger.adopt([Terms("alice", Quota("q", limits, models or {}))])
    return ledger.account("alice")


def test_a_key_without_a_quota_is_never_refused() -> None:
    ledger = Ledger(Clock())
    ledger.adopt([Terms("alice")])
    account = ledger.account("alice")
    for _ in range(1000):
        charge = account.admit("m", 10**9)
        charge.settle(Unit.TOKENS, 10**9)
    assert charge.fields() == ()
    assert not account.may_be_refused("m", 10**12)


def test_the_refusal_says_whose_limit_is_reached_and_until_when() -> None:
    account = make(Clock(), {Unit.REQUESTS: per_second(2), Unit.CONCURRENT_REQUESTS: 3})
    account.admit("m")
    account.admit("m")
    with pytest.raises(QuotaExceeded) as caught:
        account.admit("m")
    error = caught.value
    assert error.message == "key 'alice' has reached the limit of quota 'q', 2 requests in 1 s; try again in 0.5 s"
    assert (error.retry_after, error.limit) == (0.5, "requests")
    assert dict(error.fields) == {
        "ratelimit-policy": '"requests";q=2;w=1, "concurrent_requests";q=3;qu="concurrent-requests"',
        "ratelimit": '"requests";r=0;t=1, "concurrent_requests";r=1;t=1',
    }


def test_a_refused_request_costs_nothing() -> None:
    account = make(Clock(), {Unit.REQUESTS: per_second(100), Unit.CONCURRENT_REQUESTS: 1, Unit.BYTES: per_second(1000)})
    first = account.admit("m", 10)
    for _ in range(50):
        with pytest.raises(QuotaExceeded, match="1 requests at once"):
            account.admit("m", 10)
    first.end()
    assert dict(account.admit("m", 0).fields())["ratelimit"] == (
        '"requests";r=98;t=1, "concurrent_requests";r=0;t=1, "bytes";r=990;t=1'
    )


def test_a_place_is_given_back_once_however_often_the_request_ends() -> None:
    account = make(Clock(), {Unit.CONCURRENT_REQUESTS: 2})
    first, second = account.admit(), account.admit()
    first.end()
    first.end()
    account.admit()
    with pytest.raises(QuotaExceeded):
        account.admit()
    second.end()
    account.admit()


def test_a_models_limit_is_in_place_of_that_for_all() -> None:
    account = make(
        Clock(),
        {Unit.REQUESTS: per_second(1), Unit.TOKENS: per_second(10)},
        {"large": {Unit.REQUESTS: per_second(3)}},
    )
    for _ in range(3):
        account.admit("large")
    account.admit("small")  # not one of the four is counted with the others
    with pytest.raises(QuotaExceeded, match="3 requests to model 'large' in 1 s"):
        account.admit("large")
    with pytest.raises(QuotaExceeded, match="1 requests in 1 s"):
        account.admit("small")
    with pytest.raises(QuotaExceeded, match="1 requests in 1 s"):
        account.admit("other")


def test_what_depends_on_the_model_is_decided_when_that_is_known() -> None:
    account = make(
        Clock(),
        {Unit.REQUESTS: per_second(1), Unit.CONCURRENT_REQUESTS: 5},
        {"large": {Unit.REQUESTS: per_second(3)}},
    )
    account.admit("small")
    charge = account.admit()  # may be for the large one
    charge.name_model("large")
    other = account.admit()
    with pytest.raises(QuotaExceeded, match="1 requests in 1 s"):
        other.name_model("small")
    other.end()
    assert dict(charge.fields())["ratelimit"] == '"concurrent_requests";r=3;t=1, "requests:large";r=2;t=1'


def test_tokens_are_taken_by_estimate_and_settled() -> None:
    clock = Clock()
    account = make(clock, {Unit.TOKENS: per_second(100)})
    charge = account.admit("m")
    charge.take_more(Unit.TOKENS, 80)
    with pytest.raises(QuotaExceeded, match=r"100 tokens in 1 s; try again in 0\.6 s"):
        account.admit("m").take_more(Unit.TOKENS, 80)
    charge.settle(Unit.TOKENS, 10, taken=80)
    account.admit("m").take_more(Unit.TOKENS, 80)
    charge.settle(Unit.TOKENS, 60)  # some that were not foreseen
    with pytest.raises(QuotaExceeded):
        account.admit("m")
    clock.now += 0.5
    account.admit("m")


def test_tokens_are_counted_at_the_end_where_no_engine_counts() -> None:
    account = make(Clock(), {Unit.TOKENS: per_second(100)})
    for is_counted, left in ((True, 100), (False, 70)):
        charge = account.admit("m")
        charge.count_tokens = lambda: 30
        charge.is_counted = is_counted
        charge.end()
        charge.end()
        assert dict(charge.fields())["ratelimit"] == f'"tokens";r={left};t={0 if is_counted else 1}'


def test_what_goes_on_in_the_background_holds_its_place_while_it_runs() -> None:
    account = make(Clock(), {Unit.CONCURRENT_REQUESTS: 1, Unit.TOKENS: per_second(100)})
    charge = account.admit("m")
    charge.count_tokens = lambda: 30
    charge.goes_on = True
    charge.end()
    assert dict(charge.fields())["ratelimit"] == '"concurrent_requests";r=1;t=0, "tokens";r=100;t=0'
    charge.resume()
    with pytest.raises(QuotaExceeded):
        account.admit("m")
    charge.end()
    assert dict(charge.fields())["ratelimit"] == '"concurrent_requests";r=1;t=0, "tokens";r=70;t=1'


def test_a_new_file_keeps_what_is_used_and_drops_what_is_gone() -> None:
    ledger = Ledger(Clock())
    few, many = Quota("q", {Unit.REQUESTS: per_second(4)}, {}), Quota("q", {Unit.REQUESTS: per_second(10)}, {})
    ledger.adopt([Terms("alice", few), Terms("bob", few)])
    alice = ledger.account("alice")
    held = [alice.admit("m") for _ in range(4)]
    with pytest.raises(QuotaExceeded):
        alice.admit("m")
    ledger.adopt([Terms("alice", many)])
    assert ledger.account("alice") is alice
    assert dict(held[0].fields())["ratelimit"] == '"requests";r=6;t=1'
    with pytest.raises(KeyError):
        ledger.account("bob")
    ledger.adopt([Terms("alice")])
    alice.admit("m")
    held[0].settle(Unit.COMPUTE_SECONDS, 5)
    held[0].end()
    ledger.adopt([Terms("alice", few)])  # nothing is remembered of a limit that was gone
    assert dict(alice.admit("m").fields())["ratelimit"] == '"requests";r=3;t=1'


def test_places_that_were_taken_before_a_change_are_given_back_after_it() -> None:
    ledger = Ledger(Clock())
    ledger.adopt([Terms("alice", Quota("q", {Unit.CONCURRENT_REQUESTS: 2}, {}))])
    account = ledger.account("alice")
    first, second = account.admit(), account.admit()
    ledger.adopt([Terms("alice", Quota("q", {Unit.CONCURRENT_REQUESTS: 1}, {}))])
    first.end()
    with pytest.raises(QuotaExceeded):
        account.admit()
    second.end()
    account.admit()


@pytest.mark.parametrize("seed", range(20))
def test_may_be_refused_and_admit_agree_and_places_never_leak(seed: int) -> None:
    rng, clock = random.Random(seed), Clock()
    account = make(
        clock,
        {Unit.REQUESTS: per_second(5), Unit.CONCURRENT_REQUESTS: 4, Unit.BYTES: per_second(100)},
        {"large": {Unit.CONCURRENT_REQUESTS: 2, Unit.TOKENS: per_second(50)}},
    )
    running = []
    for _ in range(500):
        clock.now += rng.random() / 4
        model, size = rng.choice(["large", "small"]), rng.randrange(60)
        if account.may_be_refused(model, size):
            with pytest.raises(QuotaExceeded):
                account.admit(model, size)
        else:
            running.append(account.admit(model, size))
            running[-1].settle(Unit.TOKENS, rng.randrange(40))
        if running and rng.random() < 0.5:
            running.pop(rng.randrange(len(running))).end()
    for charge in running:
        charge.end()
    clock.now += 1000
    for model in ("large", "small"):
        charge = account.admit(model)
        state = dict(charge.fields())["ratelimit"]
        places = 1 if model == "large" else 3
        assert f"r={places};t=1" in state
        charge.end()


def test_what_is_counted_of_a_key() -> None:
    account = make(Clock(), {Unit.CONCURRENT_REQUESTS: 2}, {"large": {Unit.REQUESTS: per_second(1)}})
    usage = account.usage
    first = account.admit("large", 100)
    late = account.admit(size=10)
    assert (usage.running, usage.requests) == (2, 0)
    with pytest.raises(QuotaExceeded):
        account.admit("large")
    with pytest.raises(QuotaExceeded):
        late.name_model("large")
    late.end()
    assert (usage.running, usage.requests, usage.refusals) == (1, 0, {"concurrent_requests": 1, "requests": 1})
    first.settle(Unit.BYTES, 120, 100)
    first.settle(Unit.BYTES, 1, 100)
    first.settle(Unit.TOKENS, 30, 50)
    first.settle(Unit.COMPUTE_SECONDS, 0.5)
    first.goes_on = True
    first.end()
    assert (usage.running, usage.requests) == (0, 0)
    first.resume()
    assert usage.running == 1
    first.end()
    first.end()
    assert (usage.running, usage.requests) == (0, 1)
    assert (usage.bytes, usage.tokens, usage.compute_seconds) == (130, 30, 0.5)


def test_only_the_first_keys_of_the_file_have_numbers_of_their_own() -> None:
    ledger = Ledger(Clock())
    names = [f"key {number}" for number in range(MOST_NAMED + 20)]
    ledger.adopt([Terms(name) for name in names])
    for name in names:
        ledger.account(name).admit("m").end()
    found = ledger.usage()
    assert list(found) == [*names[:MOST_NAMED], OTHER]
    assert {name: usage.requests for name, usage in found.items() if usage.requests != 1} == {OTHER: 20}
    ledger.adopt([Terms(names[-1]), Terms(names[0]), Terms(OTHER)])
    ledger.account(OTHER).admit("m").end()
    found = ledger.usage()
    assert {name: usage.requests for name, usage in found.items()} == {names[-1]: 0, names[0]: 1, OTHER: 21}


def test_a_large_file_is_taken_without_going_through_all_of_it() -> None:
    """Thousands of keys, each with limits for thousands of models: what is looked at is what was used."""
    quota = Quota("q", {}, {f"m{number}": {Unit.REQUESTS: per_second(1)} for number in range(5000)})
    terms = [Terms(f"key {number}", quota) for number in range(5000)]
    ledger = Ledger(Clock())
    ledger.adopt(terms)
    ledger.account("key 4000").admit("m4000")
    for _ in range(3):  # 75 million limits
        ledger.adopt([*terms[:4000], *[Terms(each.name, Quota("q", {}, {})) for each in terms[4001:]], terms[4000]])
    with pytest.raises(QuotaExceeded):
        ledger.account("key 4000").admit("m4000")
    assert (len(ledger.usage()), ledger.usage()[OTHER].running) == (MOST_NAMED + 1, 1)


def test_a_refusal_says_one_time_in_all_its_fields() -> None:
    clock = Clock()
    account = make(clock, {Unit.REQUESTS: Rate(1, 1000, 5), Unit.BYTES: Rate(1e15, 1, 1e15)})
    for _ in range(5):
        account.admit().end()
    assert dict(account.resume("m").fields())["ratelimit"] == f'"requests";r=0;t=5000, "bytes";r={10**15 - 1};t=0'
    with pytest.raises(QuotaExceeded, match="try again in 1000 s") as caught:
        account.admit()
    assert caught.value.retry_after == pytest.approx(1000)
    assert dict(caught.value.fields)["ratelimit"].startswith('"requests";r=0;t=1000, ')


def test_what_was_admitted_before_has_been_named() -> None:
    """Nothing is taken by the name of its model, which was known."""
    account = make(Clock(), {}, {"m": {Unit.REQUESTS: per_second(1)}})
    account.admit("m").end()
    account.resume("m").name_model("m")
    with pytest.raises(QuotaExceeded):
        account.admit().name_model("m")


def test_what_was_admitted_before_is_charged_as_it_runs() -> None:
    """As by a server that has ended: nothing is refused, and nothing is taken twice."""
    account = make(Clock(), {Unit.REQUESTS: per_second(1), Unit.TOKENS: per_second(10), Unit.CONCURRENT_REQUESTS: 1})
    charge = account.resume("m")
    assert account.usage.running == 1
    with pytest.raises(QuotaExceeded, match="1 requests at once"):
        account.admit("m")
    charge.settle(Unit.TOKENS, 30)
    charge.end()
    assert (account.usage.running, account.usage.requests, account.usage.tokens) == (0, 1, 30)
    with pytest.raises(QuotaExceeded, match="10 tokens in 1 s"):
        account.admit("m")
