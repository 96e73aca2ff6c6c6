"""What the longest turns of a server's loop were made of: callbacks, steps of tasks, collections of garbage.

For `turns`, which has `stalls --longest` print them. Each part has its own processor time, so that work of the loop is
told apart from waiting for the interpreter, or for a processor: that is in the turn's time, but in no part. To note all
of it costs some microseconds for each callback and each step.
"""

from __future__ import annotations

import gc
import heapq
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import trio

from protocol.reactor.busy_polling import BusyPolling, Events
from protocol.reactor.poller import Poller, Watched

_KEPT = 50
_OTHERS_ABOVE = 0.0005


@dataclass(slots=True)
class Part:
    """One kind of callback or task: how often it ran in a turn, for how many seconds, and at most in one go."""

    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def note(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)


@dataclass(slots=True)
class LongTurn:
    """Seconds of the clock, and of the loop's thread on a processor. `preempted` counts how often that was taken from
    the thread, `waited` how often it waited, for the interpreter's lock or the system; `faults` the pages that it was
    given. Of other threads there is what they have computed meanwhile."""

    at: float = 0.0
    seconds: float = 0.0
    cpu: float = 0.0
    preempted: int = 0
    waited: int = 0
    faults: int = 0
    callbacks: dict[str, Part] = field(default_factory=dict)
    steps: dict[str, Part] = field(default_factory=dict)
    garbage: list[str] = field(default_factory=list)
    others: dict[str, float] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """For a person."""
        noted = sum(part.seconds for part in (*self.callbacks.values(), *self.steps.values()))
        yield (
            f"{self.at:8.3f} s: {_ms(self.seconds)} ms, of the processor {_ms(self.cpu)}, "
            f"of that in no part {_ms(self.cpu - noted)}; "
            f"preempted {self.preempted}, waited {self.waited}, {self.faults} pages"
        )
        for kind, parts in (("callback", self.callbacks), ("task", self.steps)):
            for name, part in sorted(parts.items(), key=lambda item: -item[1].seconds)[:8]:
                if part.seconds > 0.0001:
                    longest = "" if part.count == 1 else f", at most {_ms(part.longest)}"
                    yield f"    {kind} {name}: {part.count} in {_ms(part.seconds)} ms{longest}"
        for each in self.garbage:
            yield f"    garbage {each}"
        for name, seconds in self.others.items():
            yield f"    thread {name}: {_ms(seconds)} ms"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"


class TurnParts(trio.abc.Instrument):
    """Of the loop that it is added to, which is the process's only one: it replaces methods of the poller's."""

    def __init__(self) -> None:
        self._turn = LongTurn()
        self._step_began = 0.0
        self._collection_began = (0.0, 0.0)
        self._usage = resource.getrusage(resource.RUSAGE_THREAD)
        self._threads: dict[int, float] = {}
        self._longest: list[tuple[float, int, LongTurn]] = []
        self._count = 0
        self._thread = threading.get_ident()
        gc.callbacks.append(self._on_collection)
        self._begin()
        _patch(self)

    def taken(self) -> list[str]:
        """Texts about those that took the longest since this was called last, by the clock, the longest first."""
        found, self._longest = self._longest, []
        return ["\n".join(turn.lines()) for _, _, turn in sorted(found, reverse=True)]

    def before_io_wait(self, timeout: float) -> None:
        self.end()
        self._begin()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step_began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = time.thread_time() - self._step_began
        self._turn.steps.setdefault(_task_name(task, seconds), Part()).note(seconds)

    def called(self, call: Callable[[], None]) -> Callable[[], None]:
        """That callback, noted."""
        name = getattr(call, "__qualname__", repr(call))

        def noted() -> None:
            began = time.thread_time()
            try:
                call()
            finally:
                self._turn.callbacks.setdefault(name, Part()).note(time.thread_time() - began)

        return noted

    def end(self) -> None:
        turn, usage = self._turn, self._usage
        turn.seconds = time.perf_counter() - turn.at
        turn.cpu = time.thread_time() - turn.cpu
        self._count += 1
        if len(self._longest) == _KEPT and turn.seconds <= self._longest[0][0]:
            return
        now = resource.getrusage(resource.RUSAGE_THREAD)
        turn.preempted, turn.waited = now.ru_nivcsw - usage.ru_nivcsw, now.ru_nvcsw - usage.ru_nvcsw
        turn.faults = now.ru_minflt - usage.ru_minflt
        for thread in threading.enumerate():
            seconds = _thread_seconds(thread) - self._threads.get(thread.ident or 0, 0.0)
            if seconds > _OTHERS_ABOVE and thread.ident != self._thread:
                turn.others[thread.name] = seconds
        kept = (turn.seconds, self._count, turn)
        if len(self._longest) < _KEPT:
            heapq.heappush(self._longest, kept)
        else:
            heapq.heapreplace(self._longest, kept)

    def _begin(self) -> None:
        self._threads = {thread.ident or 0: _thread_seconds(thread) for thread in threading.enumerate()}
        self._usage = resource.getrusage(resource.RUSAGE_THREAD)
        self._turn = LongTurn(time.perf_counter(), cpu=time.thread_time())

    def resume(self) -> None:
        """The wait is over."""
        self._begin()

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collection_began = time.perf_counter(), time.thread_time()
            return
        began, began_cpu = self._collection_began
        seconds, cpu = time.perf_counter() - began, time.thread_time() - began_cpu
        if seconds > 0.0002:
            where = "" if threading.get_ident() == self._thread else f" in {threading.current_thread().name}"
            found = f"{info['generation']}{where}: {_ms(seconds)} ms, of the processor {_ms(cpu)}"
            self._turn.garbage.append(f"{found}; {info['collected']} collected")


def _task_name(task: trio.lowlevel.Task, seconds: float) -> str:
    name = task.name.rpartition(".")[2]
    if seconds < 0.0005:
        return name
    frames = []
    coroutine: Any = task.coro
    while getattr(coroutine, "cr_frame", None) is not None:
        frames.append(f"{coroutine.cr_code.co_name}:{coroutine.cr_frame.f_lineno}")
        coroutine = coroutine.cr_await
    return f"{name} {' '.join(frames[-5:])}"


def _thread_seconds(thread: threading.Thread) -> float:
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
    except OSError:
        return 0.0


def _patch(parts: TurnParts) -> None:
    wait, add, last = BusyPolling.wait, Poller.add, Poller.calling_last
    noted_calls: dict[Callable[[], None], Callable[[], None]] = {}  # the poller calls each of them once

    def noted_wait(busy: BusyPolling, timeout: float, most: int) -> Events:
        parts.end()
        try:
            return wait(busy, timeout, most)
        finally:
            parts.resume()

    def noted_add(
        poller: Poller, watched: Watched, call: Callable[[], None], failed: Callable[[Exception], None], **options: bool
    ) -> None:
        add(poller, watched, parts.called(call), failed, **options)

    def noted_last(poller: Poller, call: Callable[[], None]) -> AbstractContextManager[None]:
        if call not in noted_calls:
            noted_calls[call] = parts.called(call)
        return last(poller, noted_calls[call])

    for owner, name, noted in (
        (BusyPolling, "wait", noted_wait),
        (Poller, "add", noted_add),
        (Poller, "calling_last", noted_last),
    ):
        setattr(owner, name, noted)
