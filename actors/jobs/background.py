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
from actors.mail.reply_slot import ReplySlot
from protocol.core import ReplyChannel, Submitted
from protocol.errors import ServerError
from protocol.failures import CallbackFailures
from protocol.jobs.execution import ModelLoad
from protocol.messages import InferenceRequest, InferenceResponse

# How often it is looked whether a model has no live requests any more.
LOOK_SECONDS = 0.01
# How long it is known when a model has had live requests, if no more requests of jobs come.
KEEP_SECONDS = 1.0


class BackgroundCore(Protocol):
    """What background requests need of the core. `before_flush` is called with the name of a model that is about to be
    given live requests; it may submit others. It must not raise."""

    before_flush: Callable[[str], None] | None

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, *, later: bool = False) -> Submitted: ...

    def flush(self) -> None: ...

    def load_of(self, name: str) -> ModelLoad: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that has not been submitted, or has. `slot` gets its reply. `round` is how many went with live requests
    when the first of them did, and when."""

    request: InferenceRequest
    slot: ReplySlot
    submission: Submitted | None = None
    round: tuple[int, float] | None = None


@dataclass(slots=True)
class _Lane:
    """One model's: `running` were submitted, and not answered yet."""

    joining: Joining
    waiting: deque[_Waiting] = field(default_factory=deque)
    running: int = 0

    def is_idle(self, now: float) -> bool:
        """Whether it may be forgotten, with what it knows of live requests."""
        return not (self.waiting or self.running) and now - self.joining.last_start > KEEP_SECONDS


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
                # Once for all that have come or ended in one turn of the loop, so that they make a batch.
                with trio.move_on_after(LOOK_SECONDS if self._lanes else math.inf):
                    await self._changed.wait()
                self._changed = trio.Event()
                for name, lane in tuple(self._lanes.items()):
                    self._look(name, lane)
                    if lane.is_idle(trio.current_time()):
                        del self._lanes[name]
        finally:
            self._core.before_flush = None

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """As `InferenceCore.infer`, once there is room for it beside the live requests of its model."""
        name = request.model_name
        entry = _Waiting(request, ReplySlot())
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(Joining(trio.current_time()))
        lane.waiting.append(entry)
        self._changed.set()
        try:
            reply = await entry.slot.receive()
            assert entry.submission is not None  # who else would have answered
            entry.submission.end()
            if entry.round is not None:
                count, began = entry.round
                lane.joining.riding.ended(count, trio.current_time() - began)
        except BaseException:
            if entry.submission is not None:
                entry.submission.give_up()
            raise
        finally:
            if entry.submission is None:
                lane.waiting.remove(entry)
            else:
                lane.running -= 1
            self._changed.set()
        if isinstance(reply, ServerError):
            raise reply.with_traceback(None)  # one error may answer many requests
        return reply

    def _join(self, name: str) -> None:
        """Live requests of this model are about to start: others go with them."""
        if self._is_starting:
            return
        now = trio.current_time()
        self._pace.note_live(now)
        lane = self._lanes.get(name)
        if lane is None:
            return
        with self._failures.noted("job", f"requests of jobs could not join those of model '{name}'"):
            lane.joining.note_live(now)
            if not lane.waiting:
                return
            first = lane.waiting[0]
            count = self._submit(lane, lane.joining.beside(self._core.load_of(name)), now)
            if count:
                first.round = count, now

    def _look(self, name: str, lane: _Lane) -> None:
        """Start what may run now, since there are no live requests."""
        if not lane.waiting:
            return
        with self._failures.noted("job", f"requests of jobs to model '{name}' could not be started"):
            now = trio.current_time()
            if not self._submit(lane, lane.joining.alone(self._core.load_of(name), lane.running, now), now):
                return
            self._is_starting = True
            try:
                self._core.flush()
            finally:
                self._is_starting = False

    def _submit(self, lane: _Lane, most: int, now: float) -> int:
        """Returns how many were submitted."""
        count, overdue = 0, lane.joining.overdue(now)
        while lane.waiting and (count < overdue or (count < most and self._pace.may_go(now))):
            entry = lane.waiting.popleft()
            lane.running += 1
            count += 1
            lane.joining.started(now)
            self._pace.gone(sum(tensor.byte_size for tensor in entry.request.inputs))
            entry.submission = self._core.submit(entry.request, entry.slot, later=True)
        return count
