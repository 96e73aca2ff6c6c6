"""Worker link: the server's end of one worker, which owns its process, its channel and its shared memory.

A receiver of frames registers in `handlers`, by their kind; whoever waits for some registers in `at_end`.
"""

from __future__ import annotations

import logging
import math
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

import trio

from backends.python.settings import PythonSettings
from backends.python.wire.arena import Arena
from backends.python.wire.channel import Channel, Handlers, WorkerGone
from backends.python.wire.frames import BrokenFrame, Frame, decode_head, encode
from backends.python.wire.heads import DoneHead, FailedHead, LogHead, log_level_name
from backends.python.wire.schemas import Schemas
from backends.python.worker.trioton_worker.frames import DONE, FAILED, FINALIZE, LOG
from backends.python.workers.idle_memory import IdleMemory
from backends.python.workers.output import TAIL_LINES
from backends.python.workers.runner import Runner
from protocol.failures import CallbackFailures
from protocol.log.records import LoggedException, WrittenLine
from protocol.log.tags import TaggedLog, Tags, TagsNow

# How long a worker that has closed its end may take to end; it is killed then.
_EXIT_SECONDS = 2.0
# How long finalize and the interpreter's own end may take together.
FINALIZE_SECONDS = 6.0

_LOG_LEVELS = {"INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR, "VERBOSE": logging.DEBUG}

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class WorkerFailed(Exception):
    """The worker reports that the model has failed; the text is the model's. Returned, never raised."""


Outcome: TypeAlias = DoneHead | WorkerFailed | WorkerGone


class WorkerLink:
    """Closed by `stop` or `close`, whatever happens. Frames are read only while a task runs `attend`.

    `runner` is what serves the other end of the socket `control`. `failures` counts defects in the handling of its
    frames. `tags_of` gives what log lines say of the requests of a batch, by its number (0 for none); `tags_now` of the
    only one that runs.
    """

    def __init__(
        self,
        control: socket.socket,
        runner: Runner,
        settings: PythonSettings,
        log: TaggedLog,
        name: str,
        failures: CallbackFailures | None = None,
    ) -> None:
        self.name = name
        self.failures = failures or CallbackFailures()
        self.runner = runner
        self.handlers = Handlers({LOG: self._log_message, DONE: self._take_answer, FAILED: self._take_answer})
        self.at_end: list[Callable[[], None]] = []
        self.arena = Arena(settings)
        self.schemas = Schemas()
        self.idle_memory: IdleMemory | None = None
        self._log = log
        self.tags_of: Callable[[int], Tags] = lambda batch: {}
        self.tags_now: TagsNow = dict
        self._printed: deque[str] = deque(maxlen=TAIL_LINES)
        self.logs = log.logger.isEnabledFor  # whether the model's messages of a level are shown
        self.is_attended = False
        self.channel = Channel(control, self.handlers, name, self.failures)
        self._attending = trio.Lock()
        self._tasks: trio.Nursery | None = None
        self._listened = trio.Event()
        self._answer: Frame | None = None
        self._awaited: trio.Event | None = None

    async def attend(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read frames, output and log messages until the worker is dead, then return; kills one whose channel has
        ended.

        One task does it at a time; a second one waits for its turn.
        """
        async with self._attending:
            try:
                async with trio.open_nursery() as nursery:
                    self._tasks = nursery
                    self.is_attended = True
                    nursery.start_soon(self.runner.forward_output, self._tags_now)
                    nursery.start_soon(self._listen)
                    if self.idle_memory is not None:
                        nursery.start_soon(self.idle_memory.run)
                    task_status.started()
                    await self.runner.wait_exit()
                    self.channel.hang_up()
                    await self._listened.wait()
                    await self.runner.log_last_output(self._tags_now)
                    nursery.cancel_scope.cancel()
            finally:
                self._tasks = None
                self.is_attended = False

    async def _listen(self) -> None:
        await self.channel.run()
        self._listened.set()
        for told in self.at_end:
            try:
                told()
            except Exception as error:  # the others have callers that wait, too
                self.failures.note("worker", error, f"{self.name}: somebody could not be told that it has ended")
        if self._awaited is not None:
            self._awaited.set()
        with trio.move_on_after(_EXIT_SECONDS):
            await self.runner.wait_exit()
        self.runner.kill()

    @asynccontextmanager
    async def attended(self) -> AsyncIterator[None]:
        """Attend while the body runs. The body must not raise: its errors would come out in a group."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.attend)
            yield
            nursery.cancel_scope.cancel()

    async def attending(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of the work, attended if no task attends already."""
        if self.is_attended:
            return await work()
        failure: Exception | None = None
        async with self.attended():
            try:
                result = await work()
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure
        return result

    def spawn(self, work: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run it in the nursery of `attend`; cancelled when that ends. Only while attended."""
        assert self._tasks is not None
        self._tasks.start_soon(work, *args)

    async def request(self, kind: int, head: Mapping[str, Any]) -> Outcome:
        """Send a request other than a batch, and wait for its answer. Logs the traceback of a failure."""
        assert self._awaited is None
        self._awaited = trio.Event()
        try:
            await self.channel.send(encode(kind, dict(head)))
            await self._awaited.wait()
            frame, self._answer = self._answer, None
            return WorkerGone(self.channel.problem) if frame is None else self._outcome(frame)
        except WorkerGone as gone:
            return gone
        except BrokenFrame as broken:
            return WorkerGone(str(broken))
        finally:
            self._awaited = None

    def _outcome(self, frame: Frame) -> DoneHead | WorkerFailed:
        if frame.kind == DONE:
            return decode_head(frame, DoneHead)
        failed = decode_head(frame, FailedHead)
        self.log_failure(failed)
        return WorkerFailed(failed.message)

    def log_failure(self, failed: FailedHead, tags: Tags | None = None) -> None:
        if failed.traceback:
            text = failed.traceback.rstrip()
            self._log.error("%s: %s", self.name, text, extra={"tags": tags or {}, "body": text})

    async def end_text(self, problem: str = "") -> str:
        """How the worker ended, now that it has; one that has not ended yet is killed.

        `problem` is what was wrong with what it sent, where something was.
        """
        if not problem:
            with trio.move_on_after(_EXIT_SECONDS):
                await self.runner.wait_exit()
        found = self.runner.exit_text()
        if problem or found is None:
            self.runner.kill()
            return f"{self.runner.killed_text}, because {problem or 'it closed its connection'}"
        return found

    def tail(self) -> list[str]:
        """The last lines that the worker printed, now that it has ended."""
        return [*self.runner.tail, *self._printed][-TAIL_LINES:]

    def resident_bytes(self) -> int | None:
        """The resident memory of the worker; None if unknown."""
        return self.runner.resident_bytes()

    async def stop(self, *, is_patient: bool = False) -> None:
        """Finalize the model and end the worker, by force when it takes too long; free everything. Bounded, but where
        it is patient."""
        try:
            if not self.channel.is_closed:
                async with self.attended():
                    with trio.move_on_after(math.inf if is_patient else FINALIZE_SECONDS) as finalizing:
                        await self._finalize()
                if finalizing.cancelled_caught:
                    self._log.warning("%s: did not end within %g s and is killed", self.name, FINALIZE_SECONDS)
                await self.runner.log_last_output(self._tags_now)
        finally:
            await self.close()

    async def _finalize(self) -> None:
        outcome = await self.request(FINALIZE, {})
        if isinstance(outcome, WorkerFailed):
            self._log.error("%s: finalize failed: %s", self.name, outcome)
        if not isinstance(outcome, WorkerGone):
            await self.runner.wait_exit()

    async def close(self) -> None:
        """Kill the worker if it lives, reap it, free everything. Shielded and bounded."""
        await self.runner.close()
        self.channel.close()
        self.arena.close()

    def _take_answer(self, frame: Frame) -> None:
        if self._awaited is None or self._answer is not None:
            raise BrokenFrame("it answered what was not asked")
        self._answer = frame
        self._awaited.set()

    def _log_message(self, frame: Frame) -> None:
        """A message of the model's, with its caller's place, or a line that it has printed."""
        head = decode_head(frame, LogHead)
        level = _LOG_LEVELS[log_level_name(head)]
        if head.is_printed:
            self._printed.append(head.message)
        if self._log.isEnabledFor(level):
            exception = None if head.exception is None else LoggedException(*head.exception)
            written = (head.message, head.filename, head.line, head.logger, head.severity, exception)
            record = WrittenLine(level, *written).record(self._log.logger, self.name)
            self._log.handle(record, self.tags_of(head.batch))

    def _tags_now(self) -> Tags:
        return self.tags_now()
