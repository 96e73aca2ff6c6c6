"""Scheduler: the queue of one model version, emptied into its idle instances.

Flow: core → model → [scheduler] → model instance → [scheduler] → reply channel → core.
One actor serves Triton's default scheduler and its dynamic batcher; they differ only in their policy.
Started and owned by the model actor; knows its instances by their addresses, and nothing of what they run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from actors.batching_policy import BatchingPolicy
from actors.messages import (
    Abandon,
    BatchDone,
    Drain,
    Execute,
    InstanceAddress,
    InstanceGone,
    InstanceReady,
    QueuedRequest,
    Reply,
    SchedulerAddress,
    SchedulerMessage,
    StreamEnded,
    Submit,
    stopped_accepting,
)
from actors.ordered_replies import OrderedReplies
from actors.statistics import FailureReason, VersionStatistics
from protocol.errors import Unavailable


@dataclass(eq=False, slots=True)
class Scheduler:
    """Ends when drained: asked to, nothing queued, nothing running. Cancelled, it fails all that it holds.
    On its way out it closes its instances' addresses, so that they unload."""

    name: str
    policy: BatchingPolicy
    statistics: VersionStatistics
    ordered: OrderedReplies | None = None
    is_decoupled: bool = False
    _live: set[InstanceAddress] = field(default_factory=set)
    _idle: deque[InstanceAddress] = field(default_factory=deque)
    _running: dict[InstanceAddress, Sequence[QueuedRequest]] = field(default_factory=dict)
    _streaming: set[QueuedRequest] = field(default_factory=set)
    _is_draining: bool = False

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance."""
        return len(self.policy)

    @property
    def live_count(self) -> int:
        """Instances that are loaded, idle or busy."""
        return len(self._live)

    async def run(self, *, task_status: trio.TaskStatus[SchedulerAddress] = trio.TASK_STATUS_IGNORED) -> None:
        to_inbox, inbox = trio.open_memory_channel[SchedulerMessage](math.inf)
        with inbox:
            try:
                task_status.started(SchedulerAddress(to_inbox))
                while not self._is_drained():
                    with trio.move_on_at(self.policy.wake_at() if self._idle else math.inf):
                        self._handle(await inbox.receive())
                    self._handle_waiting(inbox)
                    self._assign()
            finally:
                self._fail_all(inbox)

    def _is_drained(self) -> bool:
        return self._is_draining and not self._running and not self._streaming and not len(self.policy)

    def _handle_waiting(self, inbox: trio.MemoryReceiveChannel[SchedulerMessage]) -> None:
        """Take all messages that are there already: one wake-up for a burst of requests, not one for each."""
        while True:
            try:
                message = inbox.receive_nowait()
            except trio.WouldBlock:
                return
            self._handle(message)

    def _handle(self, message: SchedulerMessage) -> None:
        match message:
            case Submit(item):
                self._submit(item)
            case BatchDone():
                self._finish(message)
            case Abandon(item):
                self.policy.abandon(item)
                self.statistics.count_failure(FailureReason.CANCELED, trio.current_time() - item.arrival)
                if self.ordered is not None:
                    self.ordered.answer(())
            case StreamEnded():
                self._streaming.discard(message.item)
                self.statistics.count_stream(message, now=trio.current_time())
            case InstanceReady(instance):
                self._live.add(instance)
                self._idle.append(instance)
            case InstanceGone(instance):
                self._lose(instance)
            case Drain():
                self._is_draining = True

    def _submit(self, item: QueuedRequest) -> None:
        if item.is_cancelled:
            return
        if self._is_draining:
            item.answer(stopped_accepting())
        elif not self._live:
            item.answer(self._no_instance())
            self.statistics.count_failure(FailureReason.OTHER, 0.0)
        elif self.policy.add(item):
            if self.ordered is not None:
                self.ordered.expect(item)
        else:
            request_id = item.request.id or "<id_unknown>"
            item.answer(Unavailable(f"[request id: {request_id}] Exceeds maximum queue size of model '{self.name}'"))
            self.statistics.count_failure(FailureReason.REJECTED, 0.0)

    def _finish(self, done: BatchDone) -> None:
        self._running.pop(done.instance, None)
        self.statistics.count_batch(done, now=trio.current_time())
        if done.replies is not None:
            self._answer(done.batch, done.replies)
        if done.is_alive:
            self._idle.append(done.instance)
        else:
            self._lose(done.instance)

    def _answer(self, batch: Sequence[QueuedRequest], replies: Sequence[Reply]) -> None:
        if self.ordered is not None:
            self.ordered.answer(zip(batch, replies, strict=True))
            return
        for item, reply in zip(batch, replies, strict=True):
            item.answer(reply)

    def _lose(self, instance: InstanceAddress) -> None:
        self._live.discard(instance)
        if instance in self._idle:
            self._idle.remove(instance)
        unseen = self._running.pop(instance, None)
        if unseen is not None:  # handed over in the moment in which it died
            self._streaming.difference_update(unseen)
            self._fail(unseen, Unavailable(f"model instance '{instance.name}' has died"))
        if not self._live:  # nobody is left to run them, and a restart may take long or fail
            self._fail(self.policy.clear(), self._no_instance())

    def _no_instance(self) -> Unavailable:
        return Unavailable(f"model '{self.name}' is not ready: all of its instances have stopped and are restarting")

    def _assign(self) -> None:
        while self._idle:
            batch = self.policy.next_batch(trio.current_time())
            if batch is None:
                return
            instance = self._idle.popleft()
            self._running[instance] = batch
            if self.is_decoupled:
                self._streaming.update(batch)
            instance.inbox.send_nowait(Execute(batch))

    def _fail(self, items: Sequence[QueuedRequest], error: Unavailable) -> None:
        now = trio.current_time()
        for item in items:
            self.statistics.count_failure(FailureReason.OTHER, now - item.arrival)
        self._answer(items, [error] * len(items))

    def _fail_all(self, inbox: trio.MemoryReceiveChannel[SchedulerMessage]) -> None:
        """On the way out: nobody may be left waiting for an answer that cannot come."""
        self._is_draining = True
        self._handle_waiting(inbox)
        error = Unavailable(f"model '{self.name}' was stopped before the request was finished")
        self._fail(self.policy.clear(), error)
        for batch in self._running.values():
            self._fail([item for item in batch if item not in self._streaming], error)
        for item in self._streaming:
            item.failure = error
            item.reply.close()
        self._running.clear()
        for instance in self._live:
            instance.inbox.close()
