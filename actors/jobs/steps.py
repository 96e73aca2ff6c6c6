"""Steps: what is to be done next for a job with a source, so that a bounded part of it is in the store. Pure.

Rows are added while there is room, and results are written when there are enough for a file, or nothing else can come.
"""

from __future__ import annotations

from enum import Enum, auto

from protocol.jobs.job import Job
from protocol.jobs.source import Progress
from protocol.jobs.states import JobState

# Rows of a file of results, if they have no more bytes than that.
FILE_ROWS = 8192
FILE_BYTES = 32 << 20
# Of one job in the store: rows, and bytes of requests and results. The last row that fits may be larger.
MOST_ROWS = 2 * FILE_ROWS
MOST_BYTES = 4 * FILE_BYTES


class Step(Enum):
    """LOAD rows, WRITE a file if the results that are next are enough for one, WRITE_ALL that are there, CLOSE the job,
    or WAIT until something has changed."""

    LOAD = auto()
    WRITE = auto()
    WRITE_ALL = auto()
    CLOSE = auto()
    WAIT = auto()


def next_step(job: Job, progress: Progress, *, is_over: bool, wants_file: bool, is_full: bool = False) -> Step:
    """
    Args:
        is_over: no more rows are to be added, whether or not there are any.
        is_full: the store has no room; that of results that are written becomes free.
        wants_file: whether it is worth looking for a file's results; they may be there and not the next ones.
    """
    held, left = progress.held, job.counts.left
    is_over = is_over or progress.is_read
    has_room = held < MOST_ROWS and job.byte_size < MOST_BYTES and not (is_full and held)
    if not left and (is_over or not has_room):
        return Step.WRITE_ALL if held else Step.CLOSE if is_over else Step.LOAD
    has_file = held - left >= FILE_ROWS or (held > left and job.byte_size >= MOST_BYTES // 2)
    if has_file and wants_file and job.state is not JobState.CANCELLING:
        return Step.WRITE
    return Step.LOAD if has_room and not is_over else Step.WAIT
