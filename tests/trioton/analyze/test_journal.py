"""A journal survives a kill at any byte, and a search goes on from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.trioton.analyze.search.simulation import Surface, outcome_of, random_surface, space_of, whole
from trioton.analyze.driver import run_search
from trioton.analyze.journal import JOURNAL, Journal, Preparation, open_journal
from trioton.analyze.search.aim import Aim, Objective
from trioton.analyze.search.candidates import Outcome, Trial
from trioton.analyze.search.plan import Plan
from trioton.analyze.search.verdict import judge
from trioton.flags.fields import UsageError

IDENTITY = {"model": "m", "latency": "p99:20ms", "seed": 0}
BUDGET = 120.0


class Killed(BaseException):
    """Stands for the end of the process."""


def preparation() -> Preparation:
    return Preparation(IDENTITY, 1.0, {"": {1: 0.01}}, {"": 0.1})


def opened(folder: Path) -> Journal:
    journal = open_journal(folder, IDENTITY)
    if journal.preparation is None:
        journal.begin(preparation())
    return journal


async def searched(folder: Path, surface: Surface, ends_after: int | None = None) -> tuple[str, int, int]:
    """What is proposed, and how many trials were measured and came from the journal."""
    space = space_of(surface)
    plan = Plan(space, Aim(Objective.THROUGHPUT, surface.bound), BUDGET)
    count = 0

    async def measure(trial: Trial) -> Outcome:
        nonlocal count
        if count == ends_after:
            raise Killed
        count += 1
        return outcome_of(surface, whole(space, trial.candidate), trial, hash((trial.candidate, trial.rate)) % 1000)

    replayed = await run_search(plan, measure, opened(folder))
    return judge(plan).proposed, count, replayed


async def test_a_killed_search_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    surface = random_surface(4)
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    expected, trials, _ = await searched(tmp_path / "whole", surface)
    for _ in range(3):
        with pytest.raises(Killed):
            await searched(tmp_path / "killed", surface, ends_after=7)
    proposed, measured, replayed = await searched(tmp_path / "killed", surface)
    assert proposed == expected
    assert replayed == 21
    assert measured + replayed == trials


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add(Trial("", 10.0, 1.0, "s"), Outcome(achieved=10.0, latency=0.1))
    whole = (tmp_path / JOURNAL).read_bytes()
    journal.add(Trial("a", 20.0, 1.0, "s"), Outcome(failure="no"))
    both = (tmp_path / JOURNAL).read_bytes()
    for size in range(len(whole), len(both)):
        (tmp_path / JOURNAL).write_bytes(both[:size])
        found = open_journal(tmp_path, IDENTITY)
        assert [entry.trial.candidate for entry in found.entries] == [""]
        assert (tmp_path / JOURNAL).read_bytes() == whole
    (tmp_path / JOURNAL).write_bytes(both)
    assert [entry.outcome.failure for entry in open_journal(tmp_path, IDENTITY).entries] == ["", "no"]


def test_a_first_line_that_was_cut_off_is_a_new_journal(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / JOURNAL).write_bytes((tmp_path / JOURNAL).read_bytes()[:20])
    assert open_journal(tmp_path, IDENTITY).preparation is None


def test_another_analysis_is_refused_by_what_differs(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(UsageError, match="another latency, seed;"):
        open_journal(tmp_path, IDENTITY | {"latency": "p99:5ms", "seed": 1})


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("something else\n")
    with pytest.raises(UsageError, match="is no journal"):
        open_journal(tmp_path, IDENTITY)


async def test_a_cancelled_search_has_what_was_found(tmp_path: Path) -> None:
    surface = random_surface(4)
    space = space_of(surface)
    plan = Plan(space, Aim(Objective.THROUGHPUT, surface.bound), BUDGET)
    with trio.CancelScope() as scope:

        async def measure(trial: Trial) -> Outcome:
            if len(plan.records) == 3:
                scope.cancel()
            await trio.lowlevel.checkpoint()
            return outcome_of(surface, whole(space, trial.candidate), trial, 1)

        await run_search(plan, measure, opened(tmp_path))
    assert scope.cancelled_caught
    assert judge(plan).proposed in space.settings
