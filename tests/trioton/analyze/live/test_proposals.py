"""Proposals beside what a simulated server does when they are followed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.trioton.analyze.search.simulation import Surface, latencies
from trioton.analyze.live.observation import Observation, Percentile, Snapshot, observe
from trioton.analyze.live.proposals import Current, Sureness, as_lines, judge_formula, propose

SURFACE = Surface(
    fixed=0.008, row=0.002, power=1.0, threads=0.0, cores=8, bound=0.1, noise=0.1, hidden={"process": 1.0}
)
SETTINGS = {"instances": "2", "threads": "1", "batch": "8", "delay": "0", "isolation": "process"}
COUNT = 20_000


def served(rate: float, settings: Mapping[str, str] = SETTINGS) -> tuple[Observation, float]:
    """What a watch of a simulated server sees, and its true p99."""
    batches: list[tuple[int, float]] = []
    found = latencies(SURFACE, settings, rate, COUNT, 3, batches)
    seconds = COUNT / rate
    bounds = [0.0005 * 1.3**step for step in range(40)]
    last = Snapshot(
        seconds,
        succeeded=COUNT,
        inferences=COUNT,
        executions=len(batches),
        request_ns=int(1e9 * sum(found)),
        batches={
            size: (
                sum(1 for each, _ in batches if each == size),
                int(1e9 * sum(t for each, t in batches if each == size)),
            )
            for size in {each for each, _ in batches}
        },
        buckets={**{end: sum(each <= end for each in found) for end in bounds}, math.inf: COUNT},
        processor_use=0.3,
    )
    return observe([Snapshot(0.0, processor_use=0.3), last]), float(np.percentile(found, 99))


def current(settings: Mapping[str, str] = SETTINGS) -> Current:
    return Current(int(settings["instances"]), int(settings["batch"]), float(settings["delay"]))


def test_the_formula_explains_what_is() -> None:
    seen, p99 = served(500.0)
    assert seen.p99 is not None
    assert seen.p99.value == pytest.approx(p99, rel=0.1)
    assert judge_formula(seen, current()).sureness is Sureness.LIKELY
    assert judge_formula(seen, current()).factor == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("rate", [300.0, 500.0, 600.0])
def test_what_is_predicted_comes_true(rate: float) -> None:
    """Within 30 % of the latency that the simulated server then has."""
    seen, _ = served(rate)
    proposals = propose(seen, current())
    assert proposals
    for proposal in proposals:
        if proposal.sureness is Sureness.GUESS or "instances" not in proposal.settings:
            continue
        _, p99 = served(rate, {**SETTINGS, **proposal.settings})
        assert proposal.after == pytest.approx(p99, rel=0.3)


def test_a_delay_that_costs_latency_is_to_go() -> None:
    settings = {**SETTINGS, "delay": "0.05"}
    seen, _ = served(60.0, settings)
    found = {tuple(each.settings.items()): each for each in propose(seen, current(settings))}
    proposal = found[("delay", "0us"),]
    _, p99 = served(60.0)
    assert proposal.after == pytest.approx(p99, rel=0.3)


def test_with_a_bound_that_is_kept_by_far_fewer_instances_are_proposed() -> None:
    seen, _ = served(100.0, {**SETTINGS, "instances": "4"})
    found = propose(seen, replace(current(), instances=4), bound=0.1)
    assert found[0].text == "instances 4 -> 1"
    _, p99 = served(100.0, {**SETTINGS, "instances": "1"})
    assert p99 < 0.1


def test_a_bound_that_is_missed_is_kept_by_the_first_proposal() -> None:
    seen, p99 = served(600.0)
    first = propose(seen, current(), bound=0.6 * p99)[0]
    assert first.after <= 0.6 * p99 < first.before


def test_what_makes_it_less_sure() -> None:
    seen, _ = served(500.0)
    few = replace(seen, requests=50)
    assert {each.sureness for each in propose(few, current())} == {Sureness.GUESS}
    coarse = replace(seen, p99=Percentile(0.03, 0.01, 0.1, "histogram"))
    found = propose(coarse, current())
    assert all(each.sureness is not Sureness.LIKELY for each in found)
    assert "histogram_latencies=true" in found[0].reasons[-1]
    odd = replace(seen, p99=Percentile(2.0, 2.0, 2.0, "traces"))
    assert propose(odd, current())[0].reasons[0] == "the formula does not explain the latency as it is"
    bursty = replace(seen, burstiness=9.0)
    assert judge_formula(bursty, current()).sureness is not Sureness.LIKELY


def test_full_processors_gain_nothing_by_more_instances() -> None:
    seen, _ = served(500.0)
    full = replace(seen, processor_use=1.0)
    gains = [each for each in propose(full, current()) if "instances" in each.settings]
    free = [each for each in propose(seen, current()) if "instances" in each.settings]
    assert len(gains) < len(free)


def test_where_nothing_is_known_nothing_is_proposed() -> None:
    seen, _ = served(500.0)
    for unknown in (replace(seen, times=None), replace(seen, p99=None), replace(seen, requests=0)):
        assert propose(unknown, current()) == []


def test_lines() -> None:
    seen, _ = served(600.0)
    line = as_lines("m", propose(seen, current()))[0]
    assert re.fullmatch(r"m: \S+ .+ -> \d+: predicted p99 [\d.]+ -> [\d.]+ ms \((likely|possible)(: .+)?\)", line)
