"""The states of jobs: legal moves, and how a job ends."""

from __future__ import annotations

import pytest

from protocol.jobs.job import Counts, ended_state, new_job_id
from protocol.jobs.states import ITEM_MOVES, JOB_MOVES, IllegalMove, JobState, check_item_move, check_job_move

ENDED = {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}


def test_the_states_that_end_are_those_that_nothing_leaves() -> None:
    assert {state for state in JobState if state.is_ended} == ENDED
    assert {state for state, moves in ITEM_MOVES.items() if not moves} == ENDED
    assert set(JOB_MOVES) == set(JobState)


@pytest.mark.parametrize("state", [state for state in JobState if state not in ENDED])
def test_every_state_leads_to_an_end(state: JobState) -> None:
    seen, left = {state}, [state]
    while left:
        new = JOB_MOVES[left.pop()] - seen
        seen |= new
        left += new
    assert seen & ENDED


def test_what_the_table_does_not_have_is_refused() -> None:
    check_job_move(JobState.RUNNING, JobState.QUEUED)
    check_item_move(JobState.RUNNING, JobState.QUEUED)
    with pytest.raises(IllegalMove, match="a job cannot go from succeeded to running"):
        check_job_move(JobState.SUCCEEDED, JobState.RUNNING)
    with pytest.raises(IllegalMove, match="an item of a job cannot go from queued to succeeded"):
        check_item_move(JobState.QUEUED, JobState.SUCCEEDED)
    with pytest.raises(IllegalMove):
        check_item_move(JobState.CANCELLING, JobState.CANCELLED)


@pytest.mark.parametrize(
    ("state", "counts", "end"),
    [
        (JobState.RUNNING, Counts(succeeded=2), JobState.SUCCEEDED),
        (JobState.RUNNING, Counts(succeeded=1, failed=9), JobState.SUCCEEDED),
        (JobState.RUNNING, Counts(failed=1), JobState.FAILED),
        (JobState.RUNNING, Counts(succeeded=1, expired=1), JobState.EXPIRED),
        (JobState.RUNNING, Counts(failed=1, cancelled=1), JobState.CANCELLED),
        (JobState.CANCELLING, Counts(succeeded=3), JobState.CANCELLED),
    ],
)
def test_how_a_job_ends(state: JobState, counts: Counts, end: JobState) -> None:
    assert ended_state(state, counts) is end


def test_ids_sort_by_time() -> None:
    ids = [new_job_id(now) for now in (1.0, 1.5, 2.0, 1_800_000_000.0)]
    assert sorted(ids) == ids
    assert len(set(map(len, ids))) == 1
