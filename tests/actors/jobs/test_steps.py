"""What is next for a job with a source: a table, and a simulation in which everything is written and nothing grows."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from actors.jobs.steps import FILE_ROWS, MOST_BYTES, MOST_ROWS, Step, next_step
from protocol.jobs.job import Counts, Job
from protocol.jobs.source import Position, Progress
from protocol.jobs.states import JobState


def job(queued: int = 0, running: int = 0, size: int = 0, state: JobState = JobState.RUNNING) -> Job:
    return Job("job_1", "ann", "m", -1, state, Counts(queued=queued, running=running), 0.0, 1e9, byte_size=size)


def progress(held: int, written: int = 0, *, is_read: bool = False) -> Progress:
    return Progress(Position(written + held, "a"), is_read, written)


@pytest.mark.parametrize(
    ("job", "progress", "is_over", "step"),
    [
        (job(), progress(0), False, Step.LOAD),
        (job(), progress(0, is_read=True), False, Step.CLOSE),
        (job(), progress(0), True, Step.CLOSE),
        (job(queued=5), progress(5), False, Step.LOAD),
        (job(queued=5), progress(5, is_read=True), False, Step.WAIT),
        (job(running=5), progress(10, is_read=True), False, Step.WAIT),
        (job(), progress(10, is_read=True), False, Step.WRITE_ALL),
        (job(), progress(10), True, Step.WRITE_ALL),
        (job(), progress(10), False, Step.LOAD),
        (job(queued=1), progress(FILE_ROWS), False, Step.LOAD),
        (job(queued=1), progress(FILE_ROWS + 1), False, Step.WRITE),
        (job(queued=MOST_ROWS), progress(MOST_ROWS), False, Step.WAIT),
        (job(), progress(MOST_ROWS), False, Step.WRITE_ALL),
        (job(size=MOST_BYTES), progress(3), False, Step.WRITE_ALL),
        (job(queued=1, size=MOST_BYTES), progress(3), False, Step.WRITE),
        (job(queued=3, size=MOST_BYTES), progress(3), False, Step.WAIT),
        (job(queued=1, state=JobState.CANCELLING), progress(FILE_ROWS + 1), True, Step.WAIT),
        (job(state=JobState.CANCELLING), progress(5), True, Step.WRITE_ALL),
    ],
)
def test_steps(job: Job, progress: Progress, is_over: bool, step: Step) -> None:
    assert next_step(job, progress, is_over=is_over, wants_file=True) is step


def test_a_file_that_is_not_there_yet_is_not_waited_for() -> None:
    held = progress(FILE_ROWS + 1)
    assert next_step(job(queued=1), held, is_over=False, wants_file=False) is Step.LOAD


def test_a_full_store_is_waited_for_until_something_can_be_written() -> None:
    def step(left: int, held: int) -> Step:
        return next_step(job(queued=left), progress(held), is_over=False, wants_file=True, is_full=True)

    assert (step(1, 5), step(0, 5), step(0, 0)) == (Step.WAIT, Step.WRITE_ALL, Step.LOAD)


@pytest.mark.parametrize("seed", range(20))
def test_all_rows_are_written_and_those_held_are_bounded(seed: int) -> None:
    """Rows end in any order; each has a size."""
    chance = random.Random(seed)
    total, sizes = chance.randrange(40_000), [chance.choice([10, 1000, 300_000])] * 1
    rows: list[bool] = []  # whether each that is held has ended
    now = Progress()
    while True:
        left = rows.count(False)
        size = len(rows) * sizes[0]
        assert len(rows) < MOST_ROWS + 512
        assert size < MOST_BYTES + 512 * sizes[0]
        held = replace(job(queued=left, size=size))
        match next_step(held, now, is_over=False, wants_file=True):
            case Step.CLOSE:
                assert now.written == total
                return
            case Step.LOAD:
                more = min(chance.randrange(1, 512), total - now.position.row)
                rows += [False] * more
                row = now.position.row + more
                now = Progress(Position(row, "a"), row == total, now.written)
            case Step.WRITE | Step.WRITE_ALL as step:
                ended = rows.index(False) if False in rows else len(rows)
                assert ended == len(rows) or step is Step.WRITE
                taken = min(ended, FILE_ROWS)
                del rows[:taken]
                now = Progress(now.position, now.is_read, now.written + taken)
            case Step.WAIT:
                assert left
        for place in chance.sample(range(len(rows)), min(len(rows), chance.randrange(400))):
            rows[place] = True
        rows[:1] = [True] * len(rows[:1])
