"""Run: reads rows, has a model answer them, and writes the results in the rows' order, with a checkpoint each second.

Flow: reader (a thread) → rows → [run]: so many workers, each with one row at a time (`attempts`) → `window` → writer (a
thread) → state file. Whoever starts it owns it. Cancelled, nothing more is written: the next start goes on from the
last checkpoint. `stop` ends it in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec
import trio

from protocol.errors import Internal, ServerError
from protocol.jobs.rows import ResultRow
from trioton.batch.attempts import Attempts, ModelUnavailable, RequestRow
from trioton.batch.state import Ends, State
from trioton.batch.window import Window

# How long the writer sleeps at most.
TICK_SECONDS = 1.0
# What runs when the run is stopped may end within this time.
LEAVE_SECONDS = 5.0
# Rows that are written at once, at most.
_WRITTEN_AT_ONCE = 1024
# Rows may begin so far ahead of the state that was written, at first.
_LEAST_AHEAD = 1024


class Rows(Protocol):
    """The rows of an input, in order. Blocks: called in a thread, once at a time."""

    def read(self) -> Sequence[RequestRow]:
        """The next ones, as many as are handy; empty at the end. Raises ServerError, OSError."""
        ...

    def fraction(self) -> float:
        """How much of the input was read, from 0 to 1."""
        ...


class Results(Protocol):
    """Where results go, in order. Its methods raise ServerError, OSError.

    Attributes:
        checkpoint_seconds: how often what was written is to be made durable.
        is_full: it should be now.
        failures: rows that have failed so far, after a checkpoint with those whose results the format cannot hold.
    """

    checkpoint_seconds: float

    @property
    def is_full(self) -> bool: ...

    @property
    def failures(self) -> int: ...

    def write(self, results: Sequence[ResultRow]) -> None:
        """Blocks: called in a thread, once at a time."""

    def checkpoint(self) -> Ends:
        """Make what was written durable; returns where it ends. Blocks as `write`."""
        ...


class States(Protocol):
    """Where states go."""

    def write(self, state: State) -> None:
        """Blocks until it is on the disk. Raises ServerError, OSError."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `total` is estimated from how much of the input was read, 0 where nothing was yet."""

    done: int
    failed: int
    running: int
    retries: int
    total: int
    seconds: float
    is_exact: bool


class Run:
    """One run, good for one call of `run`.

    Attributes:
        state: as it was written last.
    """

    def __init__(
        self,
        rows: Rows,
        results: Results,
        states: States,
        attempts: Attempts,
        state: State,
        *,
        in_flight: int,
        window: Window,
    ) -> None:
        self.state = state
        self._rows, self._results, self._states, self._attempts = rows, results, states, attempts
        self._in_flight = in_flight
        self._window = window
        self._read: deque[RequestRow] = deque()
        self._is_read = False  # there are no more rows
        self._taken = self._done = state.done
        self._failed_before = state.failed
        self._blames_next = state.caution.blames_the_next
        self._ahead = _LEAST_AHEAD
        self._is_stopped = False
        self._have_workers_ended = False
        self._changed = trio.Event()  # for the workers and the reader
        self._has_ended_rows = trio.Event()  # for the writer
        self._failure: Exception | None = None
        self._workers = trio.CancelScope()
        self._saved_at = trio.current_time()
        self._reserved_at = self._taken

    async def run(self) -> State:
        """Until all rows are written, or it was stopped. Returns the last state.

        Raises:
            ModelUnavailable, OSError, ServerError: it cannot go on; what was written is kept.
        """
        try:
            await self._reserve()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                with self._workers:
                    async with trio.open_nursery() as workers:
                        workers.start_soon(self._feed)
                        for _ in range(self._in_flight):
                            workers.start_soon(self._work)
                self._have_workers_ended = True
                self._has_ended_rows.set()
        except (OSError, ServerError) as error:
            self._fail(error)
        if self._failure is not None:
            await self._leave_state()
            raise self._failure
        return self.state

    def _fail(self, error: Exception) -> None:
        """The run ends."""
        self._failure = self._failure or error
        self._workers.cancel()

    async def _leave_state(self) -> None:
        """That this was no crash, if that can be written."""
        if self.state.is_running:
            self.state = msgspec.structs.replace(self.state, is_running=False)
            with suppress(OSError):
                await trio.to_thread.run_sync(self._states.write, self.state)

    def stop(self) -> None:
        """Take no more rows; what runs is waited for a while."""
        self._is_stopped = True
        self._workers.deadline = trio.current_time() + LEAVE_SECONDS
        self._wake()

    def progress(self) -> Progress:
        fraction = 1.0 if self._is_read else self._rows.fraction()
        known = self._taken + len(self._read)
        return Progress(
            done=self._done,
            failed=self._failed_before + self._results.failures,
            running=self._taken - self._done,
            retries=self._attempts.retries,
            total=round(known / fraction) if fraction else 0,
            seconds=self._seconds(),
            is_exact=self._is_read,
        )

    def _seconds(self) -> float:
        return self.state.seconds + trio.current_time() - self._saved_at

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # Reading

    async def _feed(self) -> None:
        while not (self._is_stopped or self._is_read):
            if len(self._read) >= self._in_flight:
                await self._changed.wait()
                continue
            try:
                rows = await trio.to_thread.run_sync(self._rows.read)
            except (OSError, ServerError) as error:
                self._fail(error)
                return
            self._is_read = not rows
            self._read += rows
            self._wake()

    async def _work(self) -> None:
        while (row := await self._next()) is not None:
            try:
                result = await self._attempts.run(row)
            except ModelUnavailable as error:
                self._fail(error)
                return
            if self._window.end(result):
                self._has_ended_rows.set()

    async def _next(self) -> RequestRow | None:
        """None where there are no more."""
        while not self._is_stopped:
            if self._read and self._window.has_room() and self._taken < self.state.caution.begun:
                row = self._read.popleft()
                self._taken += 1
                self._window.take(row.index, row.end)
                if len(self._read) < self._in_flight:
                    self._wake()
                return self._blamed(row) if self._blames_next else row
            if self._is_read and not self._read:
                break
            if self._taken >= self.state.caution.begun:
                self._has_ended_rows.set()  # a checkpoint is due
            await self._changed.wait()
        return None

    def _blamed(self, row: RequestRow) -> RequestRow:
        self._blames_next = False
        crashes = self.state.caution.crashes_alone
        error = Internal(f"the process has died {crashes} times in a row while it ran this row alone")
        return RequestRow(row.index, row.custom_id, error, row.end)

    # Writing

    async def _write(self) -> None:
        try:
            while not await self._write_ended():
                if self._is_checkpoint_due():
                    await self._checkpoint()
                elif self._has_to_reserve():
                    await self._reserve()
                with trio.move_on_after(TICK_SECONDS):
                    await self._has_ended_rows.wait()
            await self._checkpoint(ends=True)
        except (OSError, ServerError) as error:
            self._fail(error)

    async def _write_ended(self) -> bool:
        """Write what there is; returns whether there will be nothing more."""
        have_workers_ended = self._have_workers_ended
        self._has_ended_rows = trio.Event()
        while results := self._window.ready(_WRITTEN_AT_ONCE):
            await trio.to_thread.run_sync(self._results.write, results)
            self._done += len(results)
            self._wake()
        return have_workers_ended

    def _is_checkpoint_due(self) -> bool:
        if self._done == self.state.done:
            return False
        if self.state.caution.block is not None:
            return self._done >= self.state.caution.begun
        is_time = trio.current_time() >= self._saved_at + self._results.checkpoint_seconds
        return is_time or self._results.is_full

    async def _checkpoint(self, *, ends: bool = False) -> None:
        """What was written becomes durable, and then the state tells of it."""
        done, position = self._done, self._window.position
        ends_at = await trio.to_thread.run_sync(self._results.checkpoint)
        caution = self.state.caution if done == self.state.done else self.state.caution.past(done)
        now = trio.current_time()
        await self._save(
            msgspec.structs.replace(
                self.state,
                position=position,
                ends=ends_at,
                done=done,
                failed=self._failed_before + self._results.failures,
                seconds=self.state.seconds + now - self._saved_at,
                caution=caution if ends else caution.beginning(self._may_begin(caution.block)),
                is_running=not ends,
                is_complete=ends and self._is_read and not self._read and done == self._taken,
            )
        )
        self._saved_at = now

    def _has_to_reserve(self) -> bool:
        caution = self.state.caution
        return caution.block is None and self._taken + self._ahead // 2 >= caution.begun and not self._is_stopped

    async def _reserve(self) -> None:
        """The state tells that more rows may begin, before they do."""
        caution = self.state.caution
        self._ahead = max(self._ahead, 4 * (self._taken - self._reserved_at))
        self._reserved_at = self._taken
        begun = caution.beginning(self._may_begin(caution.block))
        await self._save(msgspec.structs.replace(self.state, caution=begun, is_running=True))

    def _may_begin(self, block: int | None) -> int:
        return self._taken + self._ahead if block is None else self._done + block

    async def _save(self, state: State) -> None:
        await trio.to_thread.run_sync(self._states.write, state)
        self.state = state
        self._wake()
