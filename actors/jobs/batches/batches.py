"""The batches of one server: an actor with a task for each that has not ended. Implements
`protocol.jobs.batches.service.Batches`.

Flow: edge → [batches] → jobs → runner → … → [batches] → files → edge. The server owns it. A task reads the input of its
batch, makes its job, waits for the job's end, and writes the files. Every step is in the store before the next one:
after a crash the next start goes on with it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import trio

from actors.jobs.batches.input import items_of, let_go, read_input
from actors.jobs.batches.output import BatchOutput
from actors.jobs.jobs import ServerJobs
from protocol.errors import NotFound, Overloaded, ServerError
from protocol.failures import CallbackFailures
from protocol.jobs.batches.batch import BATCH_KIND, Batch, BatchState, LineCounts, LineError, new_batch_id
from protocol.jobs.batches.files import StoredFile
from protocol.jobs.batches.lines import InputReader
from protocol.jobs.batches.service import NewBatch
from protocol.jobs.batches.store import BatchStore, FileWriter
from protocol.jobs.job import Job
from protocol.jobs.store import JobStore, NewJob, SharedJobStore

logger = logging.getLogger(__name__)

WINDOW_SECONDS = 86_400.0
MAX_UNENDED, MAX_UNENDED_OF_ONE = 1000, 100
# Inputs that are read at the same time: the lines of each are held meanwhile.
_MOST_READING = 2
# Between two looks at a job that changes with every line.
_LOOK_SECONDS = 0.1
_RETRY_SECONDS = 5.0
# Between two looks for batches whose server has ended, where several share the store.
_ADOPT_SECONDS = 1.0


class FullStore(JobStore, BatchStore, Protocol):
    """A store of jobs and of batches."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What batches need to know of the server.

    Attributes:
        model_of: the core's name of the model that lines name. Raises ServerError: there is none.
        charge: charges the lines of a batch to their owner, for a model, so many.
        max_line_size: bytes of one line.
        keep_seconds: how long a file is kept, where its owner does not say; and a batch after its end.
    """

    model_of: Callable[[str | None], Awaitable[str]]
    charge: Callable[[str, str, int], None]
    max_line_size: int = 64 << 20
    keep_seconds: float = 30 * 86_400.0


class ServerBatches:
    """Cancelled, what has not ended goes on with the next start."""

    def __init__(
        self, store: FullStore, jobs: ServerJobs, rules: BatchRules, failures: CallbackFailures | None = None
    ) -> None:
        self.now = jobs.now
        self.keep_seconds = rules.keep_seconds
        self._store = store
        self._jobs = jobs
        self._rules = rules
        self._failures = failures or CallbackFailures()
        self._reading = trio.CapacityLimiter(_MOST_READING)
        self._nursery: trio.Nursery | None = None
        self._running: dict[str, str] = {}  # their owners
        self._scopes: dict[str, trio.CancelScope] = {}
        self._cancelled: set[str] = set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """To be started when the jobs run."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for batch in await self._store.unended_batches():
                    self._begin(nursery, batch)
                task_status.started()
                while isinstance(self._store, SharedJobStore):
                    await trio.sleep(_ADOPT_SECONDS)
                    with self._failures.noted("job", "batches of other servers could not be looked for"):
                        await self._adopt(nursery)
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def _adopt(self, nursery: trio.Nursery) -> None:
        """Go on with what other servers have left, and give up what others go on with."""
        before = {*self._running}
        try:
            found = await self._store.unended_batches()
        except ServerError:  # told by whoever needs the store
            return
        for batch in found:
            self._begin(nursery, batch)
        for batch_id in before - {batch.id for batch in found}:
            if (scope := self._scopes.get(batch_id)) is not None:  # of one that has ended meanwhile no step is left
                scope.cancel()

    # Files.

    async def file_writer(self) -> FileWriter:
        return await self._store.file_writer()

    async def keep_file(self, file: StoredFile, writer: FileWriter) -> None:
        await self._store.keep_file(file, writer)

    async def find_file(self, owner: str, file_id: str) -> StoredFile:
        file = await self._store.find_file(owner, file_id)
        if file is None or file.expires <= self.now():
            raise NotFound(f"No such File object: {file_id:.128}")
        return file

    async def files(
        self, owner: str, purpose: str, after: str, limit: int, *, ascending: bool = False
    ) -> Sequence[StoredFile]:
        return await self._store.files(owner, purpose, after, limit, ascending=ascending)

    async def remove_file(self, owner: str, file_id: str) -> None:
        if not await self._store.remove_file(owner, file_id):
            raise NotFound(f"No such File object: {file_id:.128}")

    async def read_file(self, payload: str, start: int, size: int) -> bytes:
        return await self._store.read_file(payload, start, size)

    # Batches.

    async def create(self, new: NewBatch) -> Batch:
        nursery = self._nursery
        own = sum(owner == new.owner for owner in self._running.values())
        if nursery is None or len(self._running) >= MAX_UNENDED or own >= MAX_UNENDED_OF_ONE:
            raise Overloaded(
                f"no more batches are taken now: {own} of this key have not ended, of which there may be "
                f"{MAX_UNENDED_OF_ONE}, and {len(self._running)} in all, of {MAX_UNENDED}"
            )
        now = self.now()
        batch = Batch(
            new_batch_id(now),
            new.owner,
            new.endpoint,
            new.input_file.id,
            new.input_file.payload,
            now,
            now + min(WINDOW_SECONDS, self._jobs.max_seconds),
            metadata=dict(new.metadata),
            output_seconds=new.output_seconds,
            webhook=self._jobs.webhook_for(new.owner, new.webhook),
        )
        with trio.CancelScope(shield=True):  # one that is kept is begun; takes one transaction
            batch, is_made = await self._store.add_batch(batch, new.key, new.fingerprint)
        if not is_made:
            return await self._counted(batch)
        self._begin(nursery, batch)
        return batch

    async def find(self, owner: str, batch_id: str) -> Batch:
        return await self._counted(self._found(await self._store.find_batch(owner, batch_id), batch_id))

    async def batches(self, owner: str, after: str, limit: int) -> Sequence[Batch]:
        return [await self._counted(batch) for batch in await self._store.batches(owner, after, limit)]

    async def cancel(self, owner: str, batch_id: str) -> Batch:
        self._found(await self._store.find_batch(owner, batch_id), batch_id)
        now = self.now()
        batch = self._found(await self._store.change_batch(batch_id, lambda found: found.cancelled(now)), batch_id)
        if batch.state is BatchState.CANCELLING:
            if batch_id in self._running:
                self._cancelled.add(batch_id)
            await self._jobs.give_up(owner, batch_id)
        return await self._counted(batch)

    async def _counted(self, batch: Batch) -> Batch:
        """With the counts of its job, until it has ended."""
        if batch.ended or batch.state is BatchState.VALIDATING:
            return batch
        job = await self._store.find(batch.owner, batch.id)
        return batch if job is None else replace(batch, counts=LineCounts.of(job.counts))

    @staticmethod
    def _found(batch: Batch | None, batch_id: str) -> Batch:
        if batch is None:
            raise NotFound(f"No batch found with id '{batch_id:.128}'.")
        return batch

    # The task of a batch.

    def _begin(self, nursery: trio.Nursery, batch: Batch) -> None:
        if batch.id in self._running:
            return
        self._running[batch.id] = batch.owner
        nursery.start_soon(self._keep_on, batch.owner, batch.id)

    async def _keep_on(self, owner: str, batch_id: str) -> None:
        """Bring a batch to its end, however long the store cannot be written, or a defect is in the way."""
        self._scopes[batch_id] = trio.CancelScope()
        try:
            with self._scopes[batch_id]:
                await self._run_until_done(owner, batch_id)
        finally:
            self._running.pop(batch_id, None)
            self._scopes.pop(batch_id, None)
            self._cancelled.discard(batch_id)

    async def _run_until_done(self, owner: str, batch_id: str) -> None:
        is_told = False
        while True:
            try:
                await self._run(owner, batch_id)
                return
            except ServerError as error:
                if not is_told:
                    logger.warning("batch %s waits, and goes on later: %s", batch_id, error.message)
                    is_told = True
            except Exception as error:
                self._failures.note("job", error, f"batch '{batch_id}' failed, and is tried again")
            await trio.sleep(_RETRY_SECONDS)

    async def _run(self, owner: str, batch_id: str) -> None:
        batch = await self._store.find_batch(owner, batch_id)
        if batch is None or batch.ended:
            return
        job = await self._store.find(owner, batch_id)
        if job is None and batch.state is BatchState.VALIDATING:
            job = await self._start(batch)
        elif job is not None:
            await self._note_started(batch)
        if job is not None:
            await self._end_of(job)
        await self._finish(batch_id, owner)

    async def _start(self, batch: Batch) -> Job | None:
        """Read the input, and make its job; none where that is wrong, or the batch was cancelled."""
        async with self._reading:
            reader = InputReader(batch.endpoint, max_line_size=self._rules.max_line_size)
            await self._read(batch, reader)
            if batch.id in self._cancelled:
                return None
            model = await self._model(reader)
            if reader.errors:
                await self._fail(batch, reader.errors)
                return None
            count = len(reader.lines)
            items = await items_of(batch, reader.lines, model)
            await let_go(reader.lines)
            try:
                job, is_new = await self._jobs.add(
                    NewJob(batch.id, batch.owner, items, batch.deadline, model, kind=BATCH_KIND)
                )
            finally:
                await let_go(items)
        if is_new:
            self._rules.charge(batch.owner, model, count)
        await self._note_started(batch, reader.model or model)
        return job

    async def _read(self, batch: Batch, reader: InputReader) -> None:
        try:
            await read_input(self._store, batch, reader, lambda: batch.id not in self._cancelled)
        except NotFound as error:
            reader.errors[:] = [LineError("invalid_file", error.message, param="input_file_id")]

    async def _model(self, reader: InputReader) -> str:
        if reader.errors:
            return ""
        try:
            return await self._rules.model_of(reader.model)
        except ServerError as error:
            reader.errors.append(LineError("model_not_found", error.message, 1, "body.model"))
            return ""

    async def _note_started(self, batch: Batch, model: str = "") -> None:
        """Its job is there. One that was cancelled meanwhile takes the job with it."""
        now = self.now()

        def started(found: Batch) -> Batch:
            if found.state is BatchState.VALIDATING:
                found = found.moved(BatchState.IN_PROGRESS, now)
            return replace(found, model=model or found.model)

        changed = await self._store.change_batch(batch.id, started)
        if changed is not None and changed.state is BatchState.CANCELLING:
            await self._jobs.give_up(batch.owner, batch.id)

    async def _fail(self, batch: Batch, errors: Sequence[LineError]) -> None:
        now = self.now()

        def fail(found: Batch) -> Batch:
            if found.state is not BatchState.VALIDATING:
                return found
            return replace(found.moved(BatchState.FAILED, now), errors=tuple(errors))

        await self._store.change_batch(batch.id, fail, (), now + self.keep_seconds)

    async def _end_of(self, job: Job) -> None:
        with self._jobs.follow(job.id) as follower:
            while (found := await self._store.find(job.owner, job.id)) is not None and not found.state.is_ended:
                if follower.is_over:  # the server stops; the next start goes on
                    await trio.sleep_forever()
                await follower.changed()
                await trio.sleep(_LOOK_SECONDS)

    async def _finish(self, batch_id: str, owner: str) -> None:
        """Its job has ended, or there is none, since it was cancelled before, or has failed."""
        now = self.now()
        batch = await self._store.change_batch(batch_id, lambda found: found.finalizing(now))
        job = await self._store.find(owner, batch_id)
        if batch is not None and not batch.ended:
            await self._write(batch, job)

    async def _write(self, batch: Batch, job: Job | None) -> None:
        output = BatchOutput(self._store, batch)
        try:
            if job is not None:
                await output.write(self._store, job)
            await output.keep(job, self.keep_seconds, self.now())
        finally:
            with trio.CancelScope(shield=True):
                await output.close()
