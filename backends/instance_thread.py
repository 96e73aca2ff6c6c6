"""Instance thread: the OS thread in which one model instance makes all framework calls.

Frameworks keep state per thread (CUDA contexts, allocator caches, handles) and block while they work, so an instance
makes all its calls from one thread of its own, never from a shared pool. Trio's side pays one queue put per call and
one wake-up of the loop when the call has ended.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar, TypeVarTuple, cast

import trio

from backends.affinity import bind_thread
from protocol.errors import text_of
from protocol.sync.wakeup import Wakeup

logger = logging.getLogger("trioton.model_instance")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True, eq=False)
class Elsewhere(Generic[T]):
    """What a call returns that goes on in another thread, with this call: its caller waits for that one then."""

    thread: InstanceThread
    call: Callable[[], T | Elsewhere[T]]


class _Job(Generic[T]):
    """One call. The thread writes `result` or `error`, then the loop wakes whoever still waits."""

    def __init__(self, call: Callable[[], T | Elsewhere[T]], *, is_last: bool = False) -> None:
        self.call = call
        self.is_last = is_last
        self.token = trio.lowlevel.current_trio_token()
        self._ended = Wakeup()
        self.is_abandoned = False
        self._has_begun = False
        self.result: T | None = None
        self.error: BaseException | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is to be made. One that goes on elsewhere always ends."""
        return self.is_last or self._has_begun or not self.is_abandoned

    def run(self) -> None:
        """In the thread."""
        self._has_begun = True
        try:
            found = self.call()
            if isinstance(found, Elsewhere):
                self.call = found.call
                found.thread.submit(self)
                return
            self.result = found
        except Exception as error:
            self.error = error
        except BaseException as error:  # a framework's sys.exit() must not end the server
            self.error = RuntimeError(f"the model's code raised {text_of(error)}")
            self.error.__cause__ = error
        with suppress(trio.RunFinishedError):  # the server ended while the call ran; nobody waits any more
            self.token.run_sync_soon(self._ended.wake)

    async def wait(self) -> T:
        """Sleep until the call has ended; its result or its exception. Cancelled: leaves the call to the thread."""
        try:
            await self._ended.wait()
        except trio.Cancelled:
            self.is_abandoned = True
            raise
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # breaks the cycle error -> traceback -> this frame -> error
        return cast(T, self.result)


class _Posted:
    """A call that nobody waits for."""

    is_last = False
    is_due = True

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def run(self) -> None:
        try:
            self._call()
        except BaseException:
            logger.exception("a call beside an instance has failed")


class InstanceThread:
    """Runs blocking calls one after the other, in the order of `run`, in one thread that starts with the first.

    The thread is a daemon: a framework that hangs cannot keep the server from ending. Whoever makes an
    InstanceThread closes it. It runs on these `cores`, and so do the threads that a framework starts in it; where there
    are none, on all.
    """

    def __init__(self, name: str, cores: frozenset[int] = frozenset()) -> None:
        self.name = name
        self._cores = cores
        # Each call is in exactly one place: this queue, or the thread's hands.
        self._jobs: queue.SimpleQueue[_Job[object] | _Posted] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def has_calls(self) -> bool:
        """Whether calls wait, those of cancelled callers among them. From any thread."""
        return not self._jobs.empty()

    async def run(self, fn: Callable[[*Ts], T | Elsewhere[T]], *args: *Ts) -> T:
        """Call `fn(*args)` in the thread and return what it returns, or raise what it raises.

        If the caller is cancelled it leaves at once: a call that has begun goes on to its end in the thread, its
        outcome is dropped, and the next call waits for it; a call that has not begun is never made.

        Raises:
            trio.ClosedResourceError: the thread was closed.
        """
        if self._is_closed:
            raise trio.ClosedResourceError(f"the thread '{self.name}' is closed")
        await trio.lowlevel.checkpoint_if_cancelled()
        job = _Job(lambda: fn(*args))
        self.submit(job)
        return await job.wait()

    async def aclose(self, final: Callable[[], object] | None = None) -> None:
        """Make the last call and end the thread, after the calls that were asked for before; then return.

        `final` frees what belongs to the thread; what it raises is raised here. It is made even if the caller is
        cancelled, only later and unwatched. Closing again does nothing.
        """
        if self._is_closed:
            await trio.lowlevel.checkpoint()
            return
        self._is_closed = True
        if self._thread is None and final is None:
            await trio.lowlevel.checkpoint()
            return
        last = _Job(final or _nothing, is_last=True)
        self.submit(last)
        await last.wait()

    def post(self, call: Callable[[], object]) -> None:
        """Have a call made that nobody waits for, in its turn. What it raises is only logged. From any thread."""
        self._put(_Posted(call))

    def join(self) -> None:
        """End the thread after the calls that were asked for before, and wait for that. From another thread, which
        blocks; no calls may follow."""
        self._is_closed = True
        if self._thread is not None:
            last = _Posted(_nothing)
            last.is_last = True
            self._put(last)
            self._thread.join()

    def submit(self, job: _Job[T]) -> None:
        """Make a call here that has begun in another thread."""
        self._put(cast("_Job[object]", job))

    def _put(self, job: _Job[object] | _Posted) -> None:
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=_work, args=(self._jobs, self._cores), name=self.name, daemon=True)
                    thread.start()
                    self._thread = thread
        self._jobs.put(job)


def _work(jobs: queue.SimpleQueue[_Job[object] | _Posted], cores: frozenset[int]) -> None:
    bind_thread(cores)
    while True:
        job = jobs.get()
        if job.is_due:
            job.run()
        if job.is_last:
            return
        del job  # while idle the thread must not keep a batch's memory alive


def _nothing() -> None:
    pass
