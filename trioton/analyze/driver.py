"""Driver of a search: answers its trials, from the journal as far as that goes, then by measuring."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from trioton.analyze.journal import Journal
from trioton.analyze.search.candidates import Outcome, Trial
from trioton.analyze.search.plan import Plan

Measure: TypeAlias = Callable[[Trial], Awaitable[Outcome]]
Tell: TypeAlias = Callable[[Trial, Outcome], None]


def _nothing(trial: Trial, outcome: Outcome) -> None:
    pass


async def run_search(plan: Plan, measure: Measure, journal: Journal, tell: Tell = _nothing) -> int:
    """Until the plan ends; how many trials came from the journal. Where that says something else than the plan asks,
    as one of another version may, it is no longer followed.

    Cancelled: the plan has what was found so far.
    """
    trials = plan.trials()
    replayed = 0
    try:
        trial = next(trials)
        for entry in journal.entries:
            if entry.trial != trial:
                break
            replayed += 1
            trial = trials.send(entry.outcome)
        while True:
            outcome = await measure(trial)
            journal.add(trial, outcome)
            tell(trial, outcome)
            trial = trials.send(outcome)
    except StopIteration:
        return replayed
    finally:
        trials.close()
