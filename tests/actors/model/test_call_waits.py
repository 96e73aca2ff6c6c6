"""Which waits of models for each other are refused, and which are not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from actors.instance.rate_limit_policy import Claim, RateLimitResource
from actors.instance.rate_limiter import RateLimiter
from actors.model.call_waits import CallWaits, EndlessWait, WaitingCall
from backends.services import Execution


@dataclass(eq=False)
class Target:
    """A model with `instance_count` instances, whose executions `run` makes."""

    name: str
    instance_count: int = 1
    is_ordered: bool = False
    source: object = field(default_factory=object)

    def run(self, instance: int = 0, *, places: int = 1) -> Execution:
        return Execution(self.source, self.name, f"{self.name}_{instance}", places)


def test_a_model_with_one_instance_cannot_call_itself() -> None:
    waits, a = CallWaits(), Target("a")
    caller = a.run()
    for _ in range(2):
        with pytest.raises(EndlessWait, match=r"from model 'a' could never .* of model 'a' waits .*\(a → a\)"):
            waits.add(caller, a)
    waits.add(caller, Target("b"))


def test_a_second_instance_makes_it_possible_once() -> None:
    waits, a = CallWaits(), Target("a", 2)
    waits.add(a.run(0), a)
    with pytest.raises(EndlessWait):
        waits.add(a.run(1), a)


def test_a_place_beside_a_coroutine_counts() -> None:
    """One instance that runs two batches at a time is as good as two."""
    waits, a = CallWaits(), Target("a")
    waits.add(a.run(places=2), a)
    with pytest.raises(EndlessWait):
        waits.add(a.run(places=2), a)


def test_a_long_circle_is_named() -> None:
    waits = CallWaits()
    a, b, c = Target("a"), Target("b"), Target("c")
    waits.add(a.run(), b)
    waits.add(b.run(), c)
    with pytest.raises(EndlessWait, match=r"\(c → a → b → c\)"):
        waits.add(c.run(), a)


def test_a_batch_that_waits_for_nobody_keeps_others_from_being_stuck() -> None:
    """Both instances of b are held, but one of them will end."""
    waits = CallWaits()
    a, b = Target("a"), Target("b", 2)
    waits.add(a.run(), b)
    waits.add(b.run(0), a)


def test_a_batch_that_can_end_frees_those_that_wait_for_it() -> None:
    """b's second instance waits for c, which is free: so a, and then b's first one, will be answered."""
    waits = CallWaits()
    a, b, c = Target("a"), Target("b", 2), Target("c")
    waits.add(b.run(1), c)
    waits.add(a.run(), b)
    waits.add(b.run(0), a)


def test_one_wait_without_end_is_enough() -> None:
    """A batch that waits for two is stuck if one of them cannot answer."""
    waits = CallWaits()
    a, b, free = Target("a"), Target("b"), Target("free")
    caller = a.run()
    waits.add(caller, free)
    waits.add(caller, b)
    with pytest.raises(EndlessWait):
        waits.add(b.run(), a)
    waits.remove(caller, b)
    waits.add(b.run(), a)


def test_a_model_that_keeps_the_order_answers_no_later_request_first() -> None:
    """However many instances it has."""
    waits, a, b = CallWaits(), Target("a", 5, is_ordered=True), Target("b")
    with pytest.raises(EndlessWait, match=r"\(a → a\); preserve_ordering makes them one"):
        waits.add(a.run(), a)
    waits.add(a.run(), b)
    with pytest.raises(EndlessWait):
        waits.add(b.run(), a)


def test_what_has_ended_waits_for_nobody() -> None:
    """A batch whose `execute` has returned holds no instance, though its threads may go on calling."""
    waits, a, b = CallWaits(), Target("a"), Target("b")
    ended = a.run()
    waits.add(ended, b)
    ended.is_running = False
    waits.add(b.run(), a)


def test_a_model_without_instances_refuses_by_itself() -> None:
    waits, a = CallWaits(), Target("a", 0)
    waits.add(a.run(), a)


def test_a_call_that_ends_leaves_nothing() -> None:
    waits, a, b = CallWaits(), Target("a"), Target("b")
    for _ in range(2):
        call = WaitingCall(waits, a.run())
        call.begin_wait(b)
        call.begin_wait(b)
        call.end_wait(b)
        with pytest.raises(EndlessWait):
            waits.add(b.run(), a)
        call.end_wait(b)
    waits.add(b.run(), a)


@dataclass
class Shared:
    """A rate limiter with `units` of the resource R."""

    units: int

    def __post_init__(self) -> None:
        self.limiter = RateLimiter([RateLimitResource("R", self.units)])
        self.waits = CallWaits(self.limiter)

    def model(self, name: str, needs: int, *, instances: int = 1, unlimited: int = 0) -> Target:
        """Each of its instances needs so much of R; those that are `unlimited` need nothing."""
        made = Target(name, instances + unlimited)
        for number in range(instances):
            self.limiter.register(Claim(f"{name}_{number}", 1, {("R", None): needs}), made.source)
        return made


def test_a_batch_that_holds_what_the_called_model_needs_is_refused() -> None:
    shared = Shared(1)
    a, b = shared.model("a", 1), shared.model("b", 1)
    caller = a.run()
    for _ in range(2):
        with pytest.raises(
            EndlessWait, match=r"model 'b' needs resource \"R\", of which too much is held .*\(a → b\); more of it"
        ):
            shared.waits.add(caller, b)
    shared.waits.add(Target("other").run(), b)  # a's batch runs on, and will end


def test_enough_of_a_resource_is_no_reason_to_refuse() -> None:
    shared = Shared(3)
    a, b = shared.model("a", 1), shared.model("b", 2)
    shared.waits.add(a.run(), b)


def test_one_instance_that_can_run_is_enough() -> None:
    shared = Shared(1)
    a, b = shared.model("a", 1), shared.model("b", 1, unlimited=1)
    shared.waits.add(a.run(), b)
    with pytest.raises(EndlessWait):
        shared.waits.add(b.run(1), b)  # that one waits itself, the other one needs what a holds


def test_a_model_that_goes_between_does_not_hide_the_circle() -> None:
    shared = Shared(1)
    a, between, b = shared.model("a", 1), Target("between"), shared.model("b", 1)
    shared.waits.add(a.run(), between)
    with pytest.raises(EndlessWait, match=r"\(between → b\)"):
        shared.waits.add(between.run(), b)


def test_several_callers_together_may_hold_too_much() -> None:
    shared = Shared(3)
    a, b = shared.model("a", 1, instances=2), shared.model("b", 2)
    shared.waits.add(a.run(0), b)
    with pytest.raises(EndlessWait):
        shared.waits.add(a.run(1), b)


def test_what_others_hold_will_be_given_back() -> None:
    """Batches that run without waiting for anybody hold the rest."""
    shared = Shared(2)
    a, b, busy = shared.model("a", 1), shared.model("b", 1), shared.model("busy", 1)
    busy.run()
    shared.waits.add(a.run(), b)


def test_a_batch_that_has_ended_has_given_its_resources_back() -> None:
    shared = Shared(1)
    a, b = shared.model("a", 1), shared.model("b", 1)
    ended = a.run()
    shared.waits.add(ended, Target("free"))
    ended.is_running = False
    shared.waits.add(Target("c").run(), b)


def test_an_instance_that_is_gone_needs_nothing() -> None:
    limiter = RateLimiter()
    source, claim = object(), Claim("a_0", 1, {("R", None): 1})
    limiter.register(claim, source)
    assert dict(limiter.claims(source)) == {"a_0": claim}
    assert limiter.count(("R", None)) == 1
    limiter.unregister(claim, source)
    assert not limiter.claims(source)
