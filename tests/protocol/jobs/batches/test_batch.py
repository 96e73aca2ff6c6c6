"""States of batches: the moves between them, against a model of what happens to one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.jobs.batches.batch import BATCH_MOVES, Batch, BatchState, LineCounts, new_batch_id
from protocol.jobs.job import Counts
from protocol.jobs.states import IllegalMove, JobState

ENDS = {BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED}


def batch(**members: object) -> Batch:
    return Batch("batch_1", "ann", "/v1/completions", "file-1", "payload", 100.0, 200.0, **members)  # type: ignore[arg-type]


def test_every_state_has_an_end_and_ends_have_no_moves() -> None:
    assert {state for state in BatchState if state.is_ended} == ENDS
    reached = {BatchState.VALIDATING}
    for _ in BatchState:
        reached |= {after for state in reached for after in BATCH_MOVES[state]}
    assert reached == set(BatchState)


def test_a_move_that_is_none_is_refused() -> None:
    with pytest.raises(IllegalMove, match="from validating to completed"):
        batch().moved(BatchState.COMPLETED, 1.0)


def test_times_are_kept() -> None:
    moved = batch().moved(BatchState.IN_PROGRESS, 1.0).moved(BatchState.FINALIZING, 2.0)
    assert moved.ended == 0
    assert moved.moved(BatchState.COMPLETED, 3.0).times == {"in_progress": 1.0, "finalizing": 2.0, "completed": 3.0}
    assert moved.moved(BatchState.COMPLETED, 3.0).ended == 3.0


STEPS = st.sampled_from(["start", "fail", "cancel", "finalize", "end"])


@given(st.lists(STEPS, max_size=12), st.sampled_from(JobState))
def test_whatever_comes_a_batch_ends_as_it_was_told_first(steps: list[str], job: JobState) -> None:
    """Steps come as those of a client and of the batch's own task, which looks at the state before each of its own."""
    found, was_cancelled = batch(), False
    for now, step in enumerate(steps):
        before = found
        if step == "cancel":
            found = found.cancelled(now)
            was_cancelled = was_cancelled or found.state is BatchState.CANCELLING
            if before.state in (BatchState.VALIDATING, BatchState.IN_PROGRESS):
                assert found.state is BatchState.CANCELLING
            else:
                assert found is before
        elif step == "start" and found.state is BatchState.VALIDATING:
            found = found.moved(BatchState.IN_PROGRESS, now)
        elif step == "fail" and found.state is BatchState.VALIDATING:
            found = found.moved(BatchState.FAILED, now)
        elif step == "finalize" and not found.ended:
            found = found.finalizing(now)
        elif step == "end" and found.state in (BatchState.FINALIZING, BatchState.CANCELLING):
            found = found.moved(found.end_of(job), now)
            assert found.state.is_ended
            assert (found.state is BatchState.CANCELLED) == was_cancelled
            assert (found.state is BatchState.EXPIRED) == (job is JobState.EXPIRED and not was_cancelled)


def test_what_did_not_run_has_not_failed() -> None:
    counts = Counts(queued=1, running=1, succeeded=3, failed=2, cancelled=4, expired=5)
    assert LineCounts.of(counts) == LineCounts(16, 3, 2)


def test_ids_sort_by_time() -> None:
    assert new_batch_id(1_800_000_000.0) < new_batch_id(1_800_000_000.002) < new_batch_id(4_000_000_000.0)
