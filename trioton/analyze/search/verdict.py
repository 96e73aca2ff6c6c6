"""The verdict of a search: which candidate is proposed, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trioton.analyze.search.candidates import Measured, Record
from trioton.analyze.search.paired import Comparison, compare, turns_needed
from trioton.analyze.search.plan import DEFAULT, SIGNIFICANCE, Plan


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is proposed.

    Attributes:
        proposed: the key of a candidate.
        is_proven: it is better than all other finalists, by paired tests.
        why: in words.
        equals: finalists that it could not be told from.
        comparisons: of the finalists with the best of them.
    """

    proposed: str
    is_proven: bool
    why: str
    equals: tuple[str, ...] = ()
    comparisons: dict[str, Comparison] = field(default_factory=dict)


def judge(plan: Plan) -> Verdict:
    """From whatever was measured: there is always an answer."""
    ranked = plan.ranked()
    if not ranked:
        reason = plan.records[DEFAULT].failure if DEFAULT in plan.records else "nothing was measured"
        return Verdict(DEFAULT, False, f"the default stays: {reason or 'no candidate keeps the bound'}")
    turns = plan.turns
    if len(turns) < 2:
        return _untested(ranked)
    costs = {key: [plan.aim.cost([each]) for each in measured] for key, measured in turns.items()}
    leader = min(costs, key=lambda key: (math.fsum(costs[key]) / len(costs[key]), plan.candidate(key).changes))
    comparisons = {key: compare(costs[leader], costs[key]) for key in costs if key != leader}
    equals = tuple(key for key, found in comparisons.items() if not found.is_proven(SIGNIFICANCE))
    count = len(costs[leader])
    if not equals:
        return Verdict(leader, True, f"better than the other finalists in {count} turns", (), comparisons)
    proposed = min((leader, *equals), key=lambda key: plan.candidate(key).changes)
    others = tuple(key for key in (leader, *equals) if key != proposed)
    few = f"; fewer than the {turns_needed(SIGNIFICANCE)} that can prove anything" if _too_few(turns) else ""
    why = f"no winner: {len(equals) + 1} finalists are not told apart in {count} turns{few}; it changes least"
    return Verdict(proposed, False, why, others, comparisons)


def _untested(ranked: Sequence[Record]) -> Verdict:
    best = ranked[0].candidate.key
    if len(ranked) == 1:
        return Verdict(best, False, "the only one that was measured and keeps the bound")
    return Verdict(best, False, "the best that was measured; there was no time to compare the best in turns")


def _too_few(turns: dict[str, list[Measured]]) -> bool:
    return min(map(len, turns.values())) < turns_needed(SIGNIFICANCE)
