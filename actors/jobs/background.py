"""Background requests: those of jobs, which join the batches of live requests, and run alone where there are none.

Flow: executor → [background requests] → core. `joining` says how many of a model go when, and `pace` how many the
server has time for; a live request that comes takes them along in the same moment, before its batch is put together.
Started by `trioton.job_service`, in the server's nursery.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import trio

from actors.jobs.joining import Joining
from actors.jobs.pace import Pace
from actors.jobs.riding import Riding
from actors.mail.messages import BatchDone
from actors.mail.reply_slot import ReplySlot
from actors.metrics.statistics import BatchWatcher
from protocol.core import ReplyChannel, Submitted
from protocol.errors import ServerError
from protocol.failures import CallbackFailures
from protocol.jobs.execution import ModelLoad
from protocol.messages import InferenceRequest, InferenceResponse

# How often it is looked whether a model has no live requests any more; where these come one directly after the other.
LOOK_SECONDS = 0.01
DENSE_SECONDS = 0.05
# How long it is known when a model has had live requests, if no more requests of jobs come.
KEEP_SECONDS = 1.0


class BackgroundCore(Protocol):
    """What background requests need of the core. `before_flush` is called with the name of a model that is about to be
    given live requests; it may submit others. It must not raise."""

    before_flush: Callable[[str], None] | None

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, *, later: bool = False) -> Submitted: ...

    def flush(self) -> None: ...

    def load_of(self, name: str) -> ModelLoad: ...

    def watch_batches(self, name: str, watcher: BatchWatcher) -> bool: ...

    def unwatch_batches(self, name: str, watcher: BatchWatcher) -> None: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that has not been submitted, or has. `slot` gets its reply."""

    request: InferenceRequest
    slot: ReplySlot
    submission: Submitted | None = None


@dataclass(slots=True, eq=False)
class _Lane:
    """One model's: `running` were submitted and are not answered, by identity of the request. `watcher` is called
    with the batches that the model has run."""

    joining: Joining
    pace: Pace
    failures: CallbackFailures
    waiting: deque[_Waiting] = field(default_factory=deque)
    running: set[int] = field(default_factory=set)
    watcher: BatchWatcher = field(init=False)

    def __post_init__(self) -> None:
        self.watcher = self._ran

    def forget(self) -> None:
        """The model has been loaded anew: what it took before says nothing."""
        self.joining.riding = Riding()

    def _ran(self, done: BatchDone, now: float) -> None:
        with self.failures.noted("job", "nothing was learned of a batch"):
            arrivals, live, jobs = list[float](), 0, 0
            for item in done.batch:
                if id(item.request) in self.running:
                    jobs += item.batch_size
                elif not item.is_for_nobody:
                    live += item.batch_size
                    arrivals.append(item.arrival)
            is_clean = self.pace.is_clean(now)
            self.joining.riding.ran(done.started, now, arrivals, live, jobs, is_clean=is_clean)

    @property
    def has_jobs(self) -> bool:
        return bool(self.waiting or self.running)

    def is_idle(self, now: float) -> bool:
        """Whether it has had no jobs for a while."""
        return not self.has_jobs and now - self.joining.last_start > KEEP_SECONDS


class BackgroundRequests:
    """Of one core. A request that waits holds nobody up, and is in no queue of its model."""

    def __init__(self, core: BackgroundCore, failures: CallbackFailures, pace: Pace | None = None) -> None:
        self._core = core
        self._failures = failures
        self._pace = pace or Pace()
        self._lanes: dict[str, _Lane] = {}
        self._is_starting = False
        self._changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start requests of models that have no live ones, until it is cancelled."""
        self._core.before_flush = self._join
        task_status.started()
        try:
            while True:
                await self._wait()
                for name, lane in tuple(self._lanes.items()):
                    self._look(name, lane)
                self._forget_idle(trio.current_time())
        finally:
            self._core.before_flush = None
            for name, lane in self._lanes.items():
                self._core.unwatch_batches(name, lane.watcher)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """As `InferenceCore.infer`, once there is room for it beside the live requests of its model."""
        name = request.model_name
        entry = _Waiting(request, ReplySlot())
        lane = self._lanes.get(name) or self._opened(name)
        lane.waiting.append(entry)
        self._changed.set()
        try:
            reply = await entry.slot.receive()
            assert entry.submission is not None  # who else would have answered
            entry.submission.end()
        except BaseException:
            if entry.submission is not None:
                entry.submission.give_up()
            raise
        finally:
            if entry.submission is None:
                lane.waiting.remove(entry)
            else:
                lane.running.discard(id(request))
            self._changed.set()
        if isinstance(reply, ServerError):
            raise reply.with_traceback(None)  # one error may answer many requests
        return reply

    async def _wait(self) -> None:
        """Until there may be something to start."""
        now = trio.current_time()
        with_jobs = [lane for lane in self._lanes.values() if lane.has_jobs]
        if with_jobs and all(lane.joining.is_dense(now) for lane in with_jobs):
            await trio.sleep(DENSE_SECONDS)
            return
        # Once for all that have come or ended in one turn of the loop, so that they make a batch.
        with trio.move_on_after(LOOK_SECONDS if self._lanes else math.inf):
            await self._changed.wait()
        self._changed = trio.Event()

    def _opened(self, name: str) -> _Lane:
        lane = self._lanes[name] = _Lane(Joining(trio.current_time()), self._pace, self._failures)
        self._core.watch_batches(name, lane.watcher)
        return lane

    def _forget_idle(self, now: float) -> None:
        """Models without jobs, with what is known of their live requests: as long as others have jobs, only those that
        have had none of either for long."""
        are_about = not all(lane.is_idle(now) for lane in self._lanes.values())
        for name, lane in tuple(self._lanes.items()):
            if lane.is_idle(now) and not (are_about and lane.joining.has_live(now)):
                del self._lanes[name]
                self._core.unwatch_batches(name, lane.watcher)

    def _join(self, name: str) -> None:
        """Live requests of this model are about to start: others go with them."""
        if self._is_starting:
            return
        now = trio.current_time()
        self._pace.note_live(now)
        if not self._lanes:
            return
        with self._failures.noted("job", f"requests of jobs could not join those of model '{name}'"):
            lane = self._lanes.get(name) or self._opened(name)
            lane.joining.note_live(now)
            if not lane.waiting or not lane.joining.riding.is_round(now):
                return  # this is on the way of each live request
            running, waiting = len(lane.running), len(lane.waiting)
            self._submit(lane, lane.joining.beside(self._core.load_of(name), running, waiting, now), now)

    def _look(self, name: str, lane: _Lane) -> None:
        """Start what may run now, since there are no live requests."""
        if not lane.waiting:
            return
        with self._failures.noted("job", f"requests of jobs to model '{name}' could not be started"):
            now = trio.current_time()
            if self._core.watch_batches(name, lane.watcher):
                lane.forget()
            load = self._core.load_of(name)
            most = lane.joining.alone(load, len(lane.running), now)
            # One that serves no more refuses them, which costs nobody time.
            if not self._submit(lane, most, now, heeds_others=load.capacity > 0):
                return
            self._is_starting = True
            try:
                self._core.flush()
            finally:
                self._is_starting = False

    def _submit(self, lane: _Lane, most: int, now: float, *, heeds_others: bool = True) -> int:
        """Returns how many were submitted."""
        most = min(most, len(lane.waiting))
        others: list[Joining] = []
        if most and heeds_others and self._pace.is_live(now):
            others = [other.joining for other in self._lanes.values() if other is not lane]
            most = self._as_others_can_wait(lane, most, now)
        count = min(max(most, lane.joining.overdue(now)), len(lane.waiting))
        if not count:
            return 0
        if most:
            for joining in others:
                joining.riding.went(now)
        else:  # an overdue one, whatever the live requests allow
            lane.joining.riding.withdraw()
        lane.joining.started(now)
        starting = [lane.waiting.popleft() for _ in range(count)]
        self._pace.gone(count, sum(tensor.byte_size for entry in starting for tensor in entry.request.inputs), now)
        for entry in starting:
            lane.running.add(id(entry.request))
            entry.submission = self._core.submit(entry.request, entry.slot, later=True)
        return count

    def _as_others_can_wait(self, lane: _Lane, most: int, now: float) -> int:
        """How many of so many may go beside the live requests of other models, and as the server has time."""
        is_free = lane.joining.riding.is_free
        for name, other in self._lanes.items():
            if other is not lane:
                most = other.joining.aside(self._core.load_of(name), len(other.running), most, now)
                is_free = is_free and other.joining.riding.is_free
            if not most:
                return 0
        rows = self._pace.rows(now)
        return most if most <= rows else rows if is_free else 0
