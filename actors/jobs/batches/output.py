"""Writes the files of a batch whose job has ended: the answers, and what has no answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import trio

from protocol.jobs.batches.batch import Batch, LineCounts
from protocol.jobs.batches.files import OUTPUT, StoredFile, new_file_id
from protocol.jobs.batches.results import ResultLines
from protocol.jobs.batches.store import BatchStore, FileWriter
from protocol.jobs.job import Job
from protocol.jobs.states import JobState
from protocol.jobs.store import JobStore

_ITEMS_AT_ONCE = 128


@dataclass(slots=True)
class _File:
    """One of the two; there is none without a line."""

    name: str
    writer: FileWriter | None = None
    kept: StoredFile | None = None

    @property
    def id(self) -> str:
        return "" if self.kept is None else self.kept.id


@dataclass(slots=True)
class BatchOutput:
    """Writes the files of one batch. To be closed in any case; what is not kept then is removed."""

    store: BatchStore
    batch: Batch
    _answers: _File = field(init=False)
    _failures: _File = field(init=False)

    def __post_init__(self) -> None:
        self._answers = _File(f"{self.batch.id}_output.jsonl")
        self._failures = _File(f"{self.batch.id}_error.jsonl")

    async def write(self, jobs: JobStore, job: Job) -> None:
        """Write what has come of its job. Raises InsufficientStorage."""
        lines = ResultLines(self.batch)
        index = 0
        while items := await jobs.items(job.id, index, _ITEMS_AT_ONCE, results=True):
            answers, failures = await trio.to_thread.run_sync(lines.lines_of, items)
            await self._append(self._answers, answers)
            await self._append(self._failures, failures)
            index = items[-1].index + 1
        self.batch = replace(self.batch, counts=LineCounts.of(job.counts), usage=lines.usage)

    async def keep(self, job: Job | None, keep_seconds: float, now: float) -> Batch | None:
        """Keep the files, and end the batch with them."""
        seconds = self.batch.output_seconds or keep_seconds
        for file in (self._answers, self._failures):
            if file.writer is not None:
                await file.writer.finish()
                file.kept = StoredFile(
                    new_file_id(now),
                    self.batch.owner,
                    OUTPUT,
                    file.name,
                    file.writer.payload,
                    file.writer.size,
                    now,
                    now + seconds,
                )
        written = self.batch

        def end(found: Batch) -> Batch:
            return replace(
                found.moved(found.end_of(JobState.CANCELLED if job is None else job.state), now),
                counts=written.counts,
                usage=written.usage,
                output_file=self._answers.id,
                error_file=self._failures.id,
            )

        files = [(file.kept, file.writer) for file in (self._answers, self._failures) if file.kept and file.writer]
        return await self.store.change_batch(self.batch.id, end, files, now + max(seconds, keep_seconds))

    async def close(self) -> None:
        for file in (self._answers, self._failures):
            if file.writer is not None:
                await file.writer.close()

    async def _append(self, file: _File, lines: bytes) -> None:
        if not lines:
            return
        if file.writer is None:
            file.writer = await self.store.file_writer(is_result=True)
        await file.writer.write(lines)
