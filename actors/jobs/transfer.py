"""Transfer of one job's rows: from its input into the store, and its results from the store into its output.

Flow: input → [transfer] → store → runner … → store → [transfer] → output. A task of `actors.jobs.transfers` runs it.
How far it is lies in the store, so that it goes on from there after any end of the server; a file that is written twice
is the same one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from actors.jobs.data.files import JobFiles
from actors.jobs.data.writer import OutputWriter
from actors.jobs.feed import retry_seconds
from actors.jobs.followers import JobFollower
from actors.jobs.pace import Pace
from actors.jobs.resting import rested
from actors.jobs.steps import FILE_BYTES, FILE_ROWS, Step, next_step
from protocol.errors import InsufficientStorage, Internal, QuotaExceeded, ServerError
from protocol.jobs.job import ItemError, Job
from protocol.jobs.model_inputs import ModelInputs
from protocol.jobs.payload import decode_responses, encode_request
from protocol.jobs.rows import FileRow, InputRow, ResultRow
from protocol.jobs.source import JobSource, Position, Progress
from protocol.jobs.states import JobState
from protocol.jobs.store import Item, JobStore, NewItem
from protocol.messages import InferenceRequest
from repository.stores.errors import AccessDenied

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Decoder(Protocol):
    """Makes requests of rows."""

    def decode(self, row: FileRow) -> tuple[str, InferenceRequest]:
        """A row's own name and its request; raises ServerError where it is none."""
        ...

    def name_of(self, row: FileRow) -> str:
        """The name of one that is none, empty where it has none."""
        ...


# Of rows that are added at a time.
CHUNK_ROWS = 512
CHUNK_BYTES = 4 << 20
# Between two looks at a job of which much happens.
LOOK_SECONDS = 0.1
# Of one of which nothing is told, and of one whose next result is missing.
IDLE_SECONDS = 1.0
# What is done of a job that was cancelled may be written within this: a client waits for its end.
LAST_SECONDS = 0.8


class RowModels(Protocol):
    """What the rows are for."""

    def inputs_of(self, model: str, version: int) -> ModelInputs:
        """Raises Unavailable while it is not there."""
        ...

    def admit_row(self, owner: str, model: str, size: int) -> None:
        """Charge a request to the owner. Raises QuotaExceeded."""


@dataclass(frozen=True, slots=True)
class RowParts:
    """How rows are read and written: `decoder` makes what reads those for a model and version."""

    files: JobFiles
    models: RowModels
    decoder: Callable[[ModelInputs, int], Decoder]


@dataclass(frozen=True, slots=True)
class TransferParts:
    """What all transfers of a server share.

    Attributes:
        added: is told when rows were added, and how many of them have failed before they were run.
        limiter: of threads.
        pace: of the server.
    """

    store: JobStore
    rows: RowParts
    added: Callable[[int], None]
    now: Callable[[], float]
    limiter: trio.CapacityLimiter
    pace: Pace


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows that were read: the position behind each, its bytes, and its item. `is_last` if there are no more."""

    ends: Sequence[Position]
    sizes: Sequence[int]
    items: Sequence[NewItem]
    is_last: bool

    def after(self, count: int) -> _Chunk:
        return _Chunk(self.ends[count:], self.sizes[count:], self.items[count:], self.is_last)


class JobTransfer:
    """Of one job. `run` returns when it has ended, or is gone."""

    def __init__(self, parts: TransferParts, job: Job, progress: Progress, source: JobSource) -> None:
        self._parts = parts
        self._store = parts.store
        self._job = job
        self._progress = progress
        self._source = source
        self._rows: Iterator[InputRow] | None = None
        # Of what was read, what the owner's quota has not taken yet.
        self._chunk: _Chunk | None = None
        self._decoder: Decoder | None = None
        self._writer: OutputWriter | None = None
        # Why no more rows come: the job has failed with this when those that it has are done.
        self._fault: ItemError | None = None
        self._is_output_broken = False
        # The store has no room for more rows.
        self._is_full = False
        self._not_before = 0.0
        self._failures = 0
        self._look_again = 0.0
        self._is_cancelled = False
        self._scope = trio.CancelScope()

    def cancel(self) -> None:
        """The job was cancelled: what is being read or written is given up."""
        self._is_cancelled = True
        self._scope.cancel()

    def fail(self, error: ServerError) -> None:
        """It cannot go on, and is to be ended by the next `run`."""
        self._fault, self._is_output_broken = ItemError(error.kind, error.message), True

    async def run(self, follower: JobFollower) -> None:
        """Cancelled, it goes on when it is run again. Raises ServerError where the store fails."""
        while not self._job.state.is_ended:
            if not await self._step():
                await self._wait(follower)
            job = await self._store.find(self._job.owner, self._job.id)
            if job is None:
                return
            self._job = job

    async def _step(self) -> bool:
        """Returns whether there may be more to do at once."""
        now, job = self._parts.now(), self._job
        if self._is_output_broken:
            return await self._close(JobState.FAILED)
        is_cut = job.state is JobState.CANCELLING or now >= job.deadline
        is_over = is_cut or self._fault is not None
        step = next_step(
            job, self._progress, is_over=is_over, is_full=self._is_full, wants_file=now >= self._look_again
        )
        if is_cut:
            return step in (Step.WRITE_ALL, Step.CLOSE) and await self._finish()
        if step is Step.CLOSE:
            return await self._close(JobState.FAILED if self._fault is not None else None)
        if step is Step.WAIT or (now < self._not_before and not (self._is_full and step is not Step.LOAD)):
            return False
        return await self._try(step)

    async def _try(self, step: Step) -> bool:
        self._scope = trio.CancelScope()
        if self._is_cancelled:
            self._scope.cancel()
        is_done = True
        with self._scope:
            try:
                is_done = await (self._load() if step is Step.LOAD else self._write(is_all=step is Step.WRITE_ALL))
                self._failures = 0
            except ServerError as error:
                await self._note(error, step)
        if self._scope.cancelled_caught:
            self._forget_files()
        return is_done

    async def _note(self, error: ServerError, step: Step) -> None:
        """What has failed is tried again later, or makes the job fail if it will do so again."""
        self._forget_files()
        told = ItemError(error.kind, error.message)
        may_pass = error.retry_after is not None or isinstance(error, Internal)
        if not may_pass or isinstance(error, AccessDenied):
            self._fault = told
            self._is_output_broken = step is not Step.LOAD
            return
        self._is_full = step is Step.LOAD and isinstance(error, InsufficientStorage)
        await self._put_off(error, retry_seconds(self._failures))
        self._failures += 1

    async def _put_off(self, error: ServerError, seconds: float) -> None:
        """Go on later, and let the job say why."""
        self._not_before = self._parts.now() + seconds
        with suppress(ServerError):  # the store may be what has failed
            told = ItemError(error.kind, error.message)
            await self._store.extend(self._job.id, (), self._progress, self._parts.now(), told)

    def _forget_files(self) -> None:
        """Open them anew: a thread may still be at them."""
        self._rows = self._chunk = self._writer = None

    async def _wait(self, follower: JobFollower) -> None:
        """Until something has happened to the job, or it is time to look again."""
        now = self._parts.now()
        times = (now + IDLE_SECONDS, self._job.deadline, self._not_before)
        with trio.move_on_after(min(time - now for time in times if time > now)):
            await follower.changed()
        await trio.sleep(LOOK_SECONDS)  # much may happen

    async def _load(self) -> bool:
        """Add a chunk of rows. Raises ServerError."""
        if self._decoder is None:
            inputs = self._parts.rows.models.inputs_of(self._source.model, self._source.version)
            self._decoder = self._parts.rows.decoder(inputs, self._source.version)
        if self._rows is None:
            self._rows = await self._in_thread(self._opened, self._progress.position)
        chunk = self._chunk
        if chunk is None:
            chunk = await self._in_thread(_read_chunk, self._rows, self._decoder, self._source.model, self._share())
        count, refusal = self._admitted(chunk)
        self._chunk = None if refusal is None else chunk.after(count)
        is_read = chunk.is_last and refusal is None
        position = chunk.ends[count - 1] if count else self._progress.position
        progress = Progress(position, is_read, self._progress.written)
        items = chunk.items[:count]
        if items or is_read:
            with trio.CancelScope(shield=True):  # so that what is known here and in the store is the same
                job = await self._store.extend(self._job.id, items, progress, self._parts.now())
            if job is not None and job.state is not JobState.CANCELLING:
                self._progress = progress
            self._is_full = False
            self._parts.added(sum(item.error is not None for item in items))
        if refusal is not None:
            await self._put_off(refusal, refusal.retry_after or 0.0)
        return True

    def _opened(self, position: Position) -> Iterator[InputRow]:
        return self._parts.rows.files.reader(self._source).rows(position)

    def _admitted(self, chunk: _Chunk) -> tuple[int, QuotaExceeded | None]:
        """How many rows the owner's quota takes, and why no more."""
        for count, size in enumerate(chunk.sizes):
            try:
                self._parts.rows.models.admit_row(self._job.owner, self._source.model, size)
            except QuotaExceeded as error:
                return count, error
        return len(chunk.sizes), None

    async def _write(self, *, is_all: bool) -> bool:
        """Write a file of the results that are next; if there are not enough for one, only with `is_all`.

        Raises:
            ServerError: it could not be written.
        """
        first = self._progress.written
        if not is_all and not await self._has_file(first):
            self._look_again = self._parts.now() + IDLE_SECONDS
            return False
        items = await self._items_of_file(first)
        count = len(items)
        if self._writer is None:
            self._writer = await self._in_thread(self._opened_writer)
        await self._in_thread(_write_items, self._writer, items, self._share())
        with trio.CancelScope(shield=True):
            progress = Progress(self._progress.position, self._progress.is_read, first + count)
            await self._store.drain(self._job.id, progress, self._parts.now())
            self._progress = progress
        if self._is_full:
            self._is_full, self._not_before = False, 0.0
        return count > 0

    async def _has_file(self, first: int) -> bool:
        """Whether the next results are there, as many as a file has or more bytes than that."""
        items = await self._store.items(self._job.id, first, FILE_ROWS)
        ended = next((place for place, item in enumerate(items) if not _has_ended(item)), len(items))
        held = self._progress.held - self._job.counts.left
        return ended >= FILE_ROWS or (ended > 0 and ended >= held // 2)

    async def _items_of_file(self, first: int) -> list[Item]:
        """Those that have ended, in order, as many as a file has."""
        found: list[Item] = []
        size = 0
        while len(found) < FILE_ROWS and size < FILE_BYTES:
            items = await self._store.items(self._job.id, first + len(found), FILE_ROWS - len(found), results=True)
            for item in items:
                if not _has_ended(item) or size >= FILE_BYTES:
                    return found
                size += 0 if item.result is None else len(item.result)
                found.append(item)
            if not items:
                break
        return found

    def _opened_writer(self) -> OutputWriter:
        inputs = self._parts.rows.models.inputs_of(self._source.model, self._source.version)
        return self._parts.rows.files.writer(self._source, is_batched=inputs.is_batched)

    async def _finish(self) -> bool:
        """Write what is done of a job that was cancelled or has expired, if that takes no long time, and end it."""
        with trio.move_on_after(LAST_SECONDS):
            try:
                while self._progress.held and await self._write(is_all=True):
                    pass
            except ServerError as error:
                logger.warning("what was done of job '%s' could not be written: %s", self._job.id, error.message)
        return await self._close(JobState.EXPIRED)

    async def _close(self, state: JobState | None) -> bool:
        """`state` if it was not cancelled; without one as its items ended. Returns whether it has ended: else some of
        them run."""
        job = await self._store.close_source(self._job.id, self._parts.now(), state, self._fault)
        return job is None or job.state.is_ended

    def _share(self) -> float:
        return self._parts.pace.share(trio.current_time())

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        """Cancelled, the thread is left alone: what it does is of no matter any more."""
        return await trio.to_thread.run_sync(call, *arguments, abandon_on_cancel=True, limiter=self._parts.limiter)


def _read_chunk(rows: Iterator[InputRow], decoder: Decoder, model: str, share: float) -> _Chunk:
    """In a thread, for a share of the time."""
    ends: list[Position] = []
    sizes: list[int] = []
    items: list[NewItem] = []
    left = CHUNK_BYTES
    for row in rested(rows, share):
        item = _item(row, decoder, model)
        size = sum(memoryview(part).nbytes for part in item.request)
        ends.append(row.end)
        sizes.append(size)
        items.append(item)
        left -= size
        if len(items) == CHUNK_ROWS or left <= 0:
            return _Chunk(ends, sizes, items, is_last=False)
    return _Chunk(ends, sizes, items, is_last=True)


def _item(row: InputRow, decoder: Decoder, model: str) -> NewItem:
    try:
        custom_id, request = decoder.decode(row.content)
    except ServerError as error:
        name = row.name or decoder.name_of(row.content)
        return NewItem(model, (), name, error=ItemError(error.kind, f"{row.file}: {error.message}"))
    return NewItem(model, encode_request(request), custom_id or row.name)


def _has_ended(item: Item) -> bool:
    return item.state not in (JobState.QUEUED, JobState.RUNNING)


def _write_items(writer: OutputWriter, items: list[Item], share: float) -> None:
    """In a thread, for a share of the time; it frees them, too: many take longer than the loop may be held."""
    ended = (_result_row(item) for item in items if item.state in (JobState.SUCCEEDED, JobState.FAILED))
    writer.write(rested(ended, share))
    items.clear()


def _result_row(item: Item) -> ResultRow:
    try:
        responses = [] if item.result is None else decode_responses(item.result)
    except ServerError as error:
        return ResultRow(item.index, item.custom_id, error=ItemError(error.kind, error.message))
    return ResultRow(item.index, item.custom_id, responses, item.error if item.result is None else None)
