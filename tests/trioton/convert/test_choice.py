"""The choice among what was measured."""

from __future__ import annotations

import pytest

from trioton.convert.choice import Bound, Contender, Load, Speed, choose, given_bound
from trioton.convert.tolerances import Precision


def speed(*rates: float, p99: float = 5.0) -> Speed:
    """A round for each rate."""
    return Speed(tuple((Load(1, rate, {"p50": p99 / 2, "p99": p99}, 100),) for rate in rates), 0)


def contender(
    name: str, found: Speed | None, precision: Precision = Precision.FP32, *, is_portable: bool = True
) -> Contender:
    return Contender(name, precision, is_portable, found)


def chosen(*contenders: Contender, bound: Bound | None = None) -> str:
    found = choose(contenders, bound)
    return found.name if found else ""


def test_the_fastest() -> None:
    assert chosen(contender("slow", speed(100, 101)), contender("fast", speed(200, 202))) == "fast"


def test_a_tie_goes_to_the_higher_precision() -> None:
    int8 = contender("int8", speed(104, 104), Precision.INT8)
    assert chosen(int8, contender("fp32", speed(100, 101))) == "fp32"
    assert chosen(int8, contender("fp32", speed(50, 51))) == "int8"


def test_rates_whose_rounds_overlap_are_a_tie() -> None:
    noisy = contender("noisy int8", speed(90, 150), Precision.INT8)
    assert chosen(noisy, contender("steady", speed(95, 96))) == "steady"


def test_two_equals_have_the_portable_and_then_the_first() -> None:
    here = contender("here", speed(100, 100), is_portable=False)
    assert chosen(here, contender("first", speed(100, 100)), contender("second", speed(101, 101))) == "first"


def test_only_rates_that_keep_the_bound_count() -> None:
    fast = contender("fast", speed(1000, 1000, p99=50.0))
    bound = Bound("p99", 20.0)
    assert chosen(fast, contender("slow", speed(10, 10)), bound=bound) == "slow"
    assert chosen(fast, bound=bound) == ""


def test_the_bound_is_kept_at_a_lower_load() -> None:
    loads = (Load(1, 10.0, {"p99": 1.0}, 9), Load(16, 90.0, {"p99": 30.0}, 9))
    assert Speed((loads,), 0).rates(Bound("p99", 20.0)) == (10.0,)
    assert Speed((loads,), 0).rates(None) == (90.0,)


def test_without_measurements_precision_decides() -> None:
    assert chosen(contender("int8", None, Precision.INT8), contender("fp32", None)) == "fp32"
    assert chosen() == ""


@pytest.mark.parametrize(
    ("text", "bound"),
    [("p99:20ms", Bound("p99", 20)), ("p50:0.5s", Bound("p50", 500)), ("p90:250us", Bound("p90", 0.25))],
)
def test_bounds(text: str, bound: Bound) -> None:
    assert given_bound(text) == bound


@pytest.mark.parametrize("text", ["", "20ms", "p98:20ms", "p99:20", "p99:0ms", "p99:-1ms", "p99:xms"])
def test_no_bounds(text: str) -> None:
    with pytest.raises(ValueError, match="expected <percentile>:<duration>"):
        given_bound(text)
